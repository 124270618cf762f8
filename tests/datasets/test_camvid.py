"""CamVid, from pictures in its form and from the real ones."""

import io

import numpy as np
import pytest
from PIL import Image

from twinsolve.datasets import camvid, fetch_camvid

from .test_images import pack

rng = np.random.default_rng(0)
SIZES = {"train": 3, "val": 1, "test": 2}


@pytest.fixture
def files(monkeypatch, tmp_path):
    """Names and bytes of the files of a small data set in CamVid's form."""
    monkeypatch.setattr(camvid, "_SIZES", SIZES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = {}
    for subset, size in SIZES.items():
        for number in range(size):
            for folder, shape, most in (
                (subset, (120, 160, 3), 256),
                (f"{subset}annot", (120, 160), 12),
            ):
                file = io.BytesIO()
                Image.fromarray(rng.integers(most, size=shape, dtype=np.uint8)).save(file, "PNG")
                found[f"CamVid/{folder}/{number}.png"] = file.getvalue()
    return found


def test_is_read_from_its_archive_once(files, tmp_path, monkeypatch):
    pack(tmp_path / "camvid-160x120.tar.xz", files | {"CamVid/outside.png": b"no picture"})
    loaded = fetch_camvid(subset="test", data_home=str(tmp_path))
    for name, image, target in zip(loaded.names, loaded.images, loaded.target, strict=True):
        for kept, folder in ((image, "test"), (target, "testannot")):
            picture = Image.open(io.BytesIO(files[f"CamVid/{folder}/{name}.png"]))
            assert (kept == np.asarray(picture)).all()
    assert (loaded.target <= loaded.ignored).all()
    monkeypatch.setattr(camvid, "_pictures", None)
    assert len(fetch_camvid(data_home=str(tmp_path)).images) == SIZES["train"]


def test_what_is_missing_or_of_another_kind_is_named(files, tmp_path):
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert fetch_camvid(data_home=str(tmp_path)).names == ["0", "1", "2"]
    with pytest.raises(ValueError, match="subset: must be 'train', 'val' or 'test', got 'all'"):
        fetch_camvid(subset="all", data_home=str(tmp_path))
    annotated = tmp_path / "CamVid/valannot/0.png"
    Image.fromarray(np.full((120, 160), 12, dtype=np.uint8)).save(annotated)
    with pytest.raises(ValueError, match="valannot holds classes above 11"):
        fetch_camvid(data_home=str(tmp_path))
    Image.fromarray(np.zeros((60, 80), dtype=np.uint8)).save(annotated)
    with pytest.raises(ValueError, match="must be 160 x 120, got 80 x 60"):
        fetch_camvid(data_home=str(tmp_path))
    annotated.unlink()
    with pytest.raises(ValueError, match="must hold 1 pictures in val and one of the same name"):
        fetch_camvid(data_home=str(tmp_path))


def test_camvid(real_data):
    loaded = fetch_camvid(subset="val")
    assert loaded.images.shape == (101, 120, 160, 3)
    assert set(np.unique(loaded.target)) == set(range(12))
    # Sky is brighter than road.
    grey = loaded.images.mean(axis=3)
    assert grey[loaded.target == 0].mean() > grey[loaded.target == 3].mean() + 50
