"""Devices are found by name."""

import pytest
import torch

from twinsolve.bench.devices import find_device, processes


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="device: 'nowhere'"), processes("nowhere"):
        pass


def test_auto_is_a_gpu_if_there_is_one(monkeypatch):
    assert find_device("meta").type == "meta"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == torch.device("cpu")
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda _, device: asked.append(device) or torch.ones(0))
    find_device("auto")
    assert asked == ["cuda"]
