"""What studies of networks share, whatever their task."""

import pytest
import torch

from twinsolve.bench import paired_training
from twinsolve.bench.devices import device_of
from twinsolve.bench.language.study import TEXT
from twinsolve.bench.longrange.study import SEQUENCES
from twinsolve.bench.paired_training import train_rows
from twinsolve.bench.vision.classification.study import IMAGES

TASKS = {
    "digits": IMAGES,
    "generated": TEXT,
    "listops:n_train=200,min_length=8,max_length=24": SEQUENCES,
}


@pytest.mark.parametrize("data", TASKS)
def test_networks_are_trained_where_they_are_asked_to(data, tmp_path, monkeypatch):
    seen = []

    def stop(model, *args, **kwargs):
        seen.append(device_of(model).type)
        raise InterruptedError

    monkeypatch.setattr(paired_training, "train", stop)
    monkeypatch.setattr(paired_training, "find_device", torch.device)
    with pytest.raises(InterruptedError):
        train_rows(TASKS[data], data, rows=[], seeds=1, device="meta", directory=tmp_path)
    assert seen == ["meta"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no such device")
@pytest.mark.parametrize("data", TASKS)
def test_networks_come_back_from_their_device_as_they_would_be_without(data, tmp_path):
    tables = [
        train_rows(
            TASKS[data], data, rows=["NeuTRENO"], seeds=1, steps=3, device=device,
            recipe={"depth": 1, "dim": 16}, directory=tmp_path / device,
        )
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    for name in ("validation", "token_cosine"):
        assert tables[1][name].tolist() == pytest.approx(tables[0][name].tolist(), rel=0.02)
