"""Devices are found by name."""

import pytest
import torch

from twinsolve.bench.devices import find_device, processes


@pytest.mark.parametrize("name", ["nowhere", "meta"])
def test_a_device_that_cannot_be_used_is_named(name):
    with pytest.raises(ValueError, match=f"device: '{name}'"), processes(name):
        pass


def test_auto_is_a_gpu_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == torch.device("cpu")
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", lambda _, device: asked.append(device) or torch.ones(0))
    find_device("auto")
    assert asked == ["cuda"]
