import numpy as np
import pytest

from twinsolve.datasets import fetch_set12, load_photographs, make_noisy_crop


def test_photographs_are_grey_in_unit_range():
    photographs = load_photographs()
    assert photographs.names == ["china", "flower"]
    for image in photographs.images:
        assert image.shape == (427, 640)
        assert 0 <= image.min() < 0.1
        assert 0.8 < image.max() <= 1


def test_noisy_crop_is_a_seeded_part_of_the_image():
    image = load_photographs().images[0]
    noisy, clean = make_noisy_crop(image, size=64, sigma=0.1, random_state=3)
    windows = np.lib.stride_tricks.sliding_window_view(image, (64, 64))
    assert (windows == clean).all(axis=(2, 3)).any()
    assert (noisy - clean).std() == pytest.approx(0.1, rel=0.05)
    again, _ = make_noisy_crop(image, size=64, sigma=0.1, random_state=3)
    assert (again == noisy).all()


@pytest.mark.parametrize("settings", [{"size": 9}, {"size": 0}, {"sigma": -1.0}])
def test_bad_crops_are_named(settings):
    with pytest.raises(ValueError, match=r"size: no|sigma: must"):
        make_noisy_crop(np.zeros((8, 8)), **({"size": 4, "sigma": 0.1} | settings))


def test_missing_files_are_named_with_folder_and_source(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"set12/01.png is not in .*Source: the Set12"):
        fetch_set12(data_home=str(tmp_path))


def test_set12(real_data):
    images = fetch_set12().images
    assert len(images) == 12
    assert {image.shape for image in images} == {(256, 256), (512, 512)}
    assert all(0 <= image.min() <= image.max() <= 1 for image in images)
