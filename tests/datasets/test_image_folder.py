import json
import os
import shutil

import numpy as np
import pytest
import tifffile
from PIL import Image

from twinsolve.bench.vision.denoising.picture_files import read_picture
from twinsolve.datasets import image_folder, load_image_folder, pack_image_folder

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (5, 7), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (6, 4, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images" / "test").mkdir(parents=True)
    for name, pixels in (("b.png", GREY), ("test/a.bmp", COLOUR), ("c.TIF", COLOUR)):
        Image.fromarray(pixels).save(tmp_path / "images" / name)
    (tmp_path / "images" / "Thumbs.db").write_bytes(b"no picture")
    return tmp_path / "images"


def luma(colour):
    """Of Rec. 601, as in the grey versions of the Berkeley data."""
    return colour @ [0.299, 0.587, 0.114]


def test_pictures_are_grey_levels_by_name(folder):
    loaded = load_image_folder(folder)
    assert loaded.names == ["b", "c", "test/a"]
    assert (loaded.images[0] == GREY / 255).all()
    for image in loaded.images[1:]:
        assert np.abs(255 * image - luma(COLOUR)).max() < 1


def test_pictures_in_colour(folder):
    loaded = load_image_folder(str(folder), colour=True)
    assert (loaded.images[0] == (GREY / 255)[:, :, None]).all()
    assert loaded.images[0].shape == (5, 7, 3)
    assert (loaded.images[2] == COLOUR / 255).all()


def test_jpeg_and_sixteen_bits_and_palettes(tmp_path):
    smooth = np.add.outer(np.arange(16), np.arange(16)).astype(np.uint8)
    Image.fromarray(smooth).save(tmp_path / "a.jpeg", quality=95)
    deep = RNG.integers(0, 65536, (5, 7), dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "b.png")
    Image.fromarray(deep).save(tmp_path / "c.tiff")
    Image.fromarray(COLOUR).convert("RGBA").save(tmp_path / "d.png")
    loaded = load_image_folder(tmp_path)
    assert np.abs(255 * loaded.images[0] - smooth).max() < 3
    assert (loaded.images[1] == deep / 65535).all()
    assert (loaded.images[2] == deep / 65535).all()
    assert np.abs(255 * loaded.images[3] - luma(COLOUR)).max() < 1
    assert load_image_folder(tmp_path, colour=True).images[1].shape == (5, 7, 3)


@pytest.mark.parametrize("suffix", [".webp", ".jp2", ".pgm", ".ppm", ".jfif"])
def test_other_formats_of_pillow(suffix, tmp_path):
    smooth = np.add.outer(np.arange(16), np.arange(16)).astype(np.uint8)
    options = {".webp": {"lossless": True}, ".jfif": {"quality": 95}}
    pixels = Image.fromarray(smooth).convert("RGB" if suffix == ".ppm" else "L")
    pixels.save(tmp_path / f"a{suffix}", **options.get(suffix, {}))
    for load in (load_image_folder, pack_image_folder):
        (image,) = load(tmp_path).images
        levels = image if image.dtype == np.uint8 else 255 * image
        assert np.abs(levels - smooth.astype(float)).max() < 3


@pytest.mark.parametrize("turned", range(1, 9))
@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_colours_of_sixteen_bits_are_those_of_eight(turned, planar, tmp_path):
    eight = np.indices((5, 7)).sum(0)[..., None] * np.array([20, 11, 3]) % 256
    exif = Image.Exif()
    exif[0x0112] = turned
    Image.fromarray(eight.astype(np.uint8)).save(tmp_path / "a.png", exif=exif)
    stored = (257 * eight if planar == "contig" else np.moveaxis(257 * eight, 2, 0)).astype("u2")
    tags = [(0x0112, "H", 1, turned, False)]
    tifffile.imwrite(
        tmp_path / "b.tif", stored, photometric="rgb", planarconfig=planar, extratags=tags
    )
    for colour in (False, True):
        one, other = load_image_folder(tmp_path, colour=colour).images
        assert (one == other).all()
    deep = read_picture(tmp_path / "b.tif").pixels
    assert (deep == 257.0 * read_picture(tmp_path / "a.png").pixels).all()


def test_inks_of_sixteen_bits_are_those_of_eight(tmp_path):
    """They are no colours with alpha."""
    inks = (np.indices((5, 7)).sum(0)[..., None] * np.array([9, 5, 3, 1])).astype(np.uint8)
    Image.fromarray(inks, "CMYK").save(tmp_path / "a.tif")
    deep = 257 * inks.astype(np.uint16)
    tifffile.imwrite(tmp_path / "b.tif", deep, photometric="separated")
    one, other = load_image_folder(tmp_path, colour=True).images
    assert (one == other).all()
    with pytest.raises(ValueError, match="must be grey or in red, green and blue"):
        read_picture(tmp_path / "b.tif")


def test_white_may_be_zero_in_eight_and_in_sixteen_bits(tmp_path):
    for name, pixels in (("a", GREY), ("b", 257 * GREY.astype(np.uint16))):
        tifffile.imwrite(tmp_path / f"{name}.tif", pixels, photometric="miniswhite")
        assert read_picture(tmp_path / f"{name}.tif").pixels[0, 0] == np.invert(pixels)[0, 0]
    for image in load_image_folder(tmp_path).images:
        assert (image == np.invert(GREY) / 255).all()


@pytest.mark.parametrize("load", [load_image_folder, pack_image_folder])
def test_hidden_files_and_other_formats_are_ignored(load, folder, cache):
    names = load(folder).names
    (folder / ".ipynb_checkpoints").mkdir()
    for hidden in (".a.png", ".ipynb_checkpoints/a-checkpoint.png", "test/.b.png"):
        Image.fromarray(GREY).save(folder / hidden)
    (folder / "._a.png").write_bytes(b"resources")
    (folder / "logo.svg").write_text("<svg/>")
    Image.fromarray(GREY).save(folder / "b.gif")
    assert load(folder).names == names


@pytest.mark.parametrize("suffix", [".webp", ".tif", ".png"])
def test_several_pictures_in_a_file_are_none(suffix, tmp_path):
    first, second = Image.fromarray(COLOUR), Image.fromarray(255 - COLOUR)
    first.save(tmp_path / f"a{suffix}", save_all=True, append_images=[second])
    with pytest.raises(ValueError, match=rf"a\{suffix}: must hold one picture, got 2$"):
        load_image_folder(tmp_path)


def test_a_photograph_comes_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    Image.fromarray(GREY).save(tmp_path / "a.png", exif=exif)
    assert (load_image_folder(tmp_path).images[0] == np.rot90(GREY, -1) / 255).all()


def test_names_keep_their_endings_where_two_would_be_the_same(folder):
    Image.fromarray(GREY).save(folder / "b.bmp")
    assert load_image_folder(folder).names == ["b.bmp", "b.png", "c.TIF", "test/a.bmp"]


@pytest.mark.parametrize("load", [load_image_folder, pack_image_folder])
def test_what_cannot_be_read_is_named(load, folder, cache):
    with pytest.raises(FileNotFoundError, match="absent: is not a folder"):
        load(folder / "absent")
    whole = (folder / "b.png").read_bytes()
    (folder / "b.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"b\.png: truncated"):
        load(folder)
    Image.fromarray(GREY.astype(np.int32) - 10).save(folder / "b1.tif")
    (folder / "b.png").write_bytes(whole)
    with pytest.raises(ValueError, match=r"b1\.tif.*levels must be 0 to 65535"):
        load(folder)
    (folder / "b1.tif").unlink()
    Image.fromarray(GREY.astype(np.float32)).save(folder / "b2.tif")
    (folder / "b.png").write_bytes(whole)
    with pytest.raises(ValueError, match=r"b2\.tif.*levels must have 8 or 16 bits"):
        load(folder)
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no picture"):
        load(folder / "empty")
    packed = cache.parent / "packed"
    assert not [path for path in packed.rglob("*") if path.is_file()]


def test_packed_pictures_are_those_of_the_folder_in_eight_bits(folder):
    for colour in (False, True):
        packed, loaded = (f(folder, colour=colour) for f in (pack_image_folder, load_image_folder))
        assert packed.names == loaded.names
        for own, other in zip(packed.images, loaded.images, strict=True):
            assert own.dtype == np.uint8
            assert (own == np.rint(255 * other)).all()


def test_pictures_are_packed_once_until_one_changes(folder, monkeypatch, cache):
    first = pack_image_folder(folder)
    with monkeypatch.context() as patch:
        patch.setattr(image_folder, "_levels", None)
        assert pack_image_folder(folder).key == first.key
    Image.fromarray(255 - GREY).save(folder / "b.png")
    os.utime(folder / "b.png", (1, 1))
    second = pack_image_folder(folder)
    assert second.key != first.key
    assert (second.images[0] == 255 - GREY).all()
    assert (first.images[0] == GREY).all()  # who reads the old file keeps it
    kept = [path for path in (cache.parent / "packed").rglob("*") if path.is_file()]
    assert sorted(path.suffix for path in kept) == [".json", ".u8"]


def test_the_key_is_that_of_the_pictures_wherever_they_lie(folder, tmp_path, monkeypatch):
    key = pack_image_folder(folder).key
    os.utime(folder / "b.png", (1, 1))
    assert pack_image_folder(folder).key == key
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    assert pack_image_folder("copy").key == key
    (tmp_path / "copy" / "b.png").rename(tmp_path / "copy" / "d.png")
    assert pack_image_folder("copy").key != key


def test_packed_pictures_lie_on_the_disk_and_cannot_be_changed(folder):
    image = pack_image_folder(folder).images[0]
    base = image
    while not isinstance(base, np.memmap):
        base = base.base
    with pytest.raises(ValueError, match="read-only"):
        image[0, 0] = 0


def test_an_index_is_written_after_the_pixels(folder, monkeypatch, cache):
    """What was interrupted between the two is packed again."""
    packed = pack_image_folder(folder)
    (index,) = (cache.parent / "packed").rglob("*.json")
    content = json.loads(index.read_text())
    index.unlink()
    again = pack_image_folder(folder)
    assert again.key == packed.key
    assert json.loads(index.read_text()) == content
