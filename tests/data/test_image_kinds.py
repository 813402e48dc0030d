"""Every kind of image file shows the same pixels in `run`, `predict`, `score` and `doctor`, or is refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ducats.data.decoding import (
    decode_image_bytes,
    decode_image_sets,
    decode_images,
    find_unreadable,
    parse_value_range,
)
from ducats.doctor import diagnose_folder
from ducats.utils.errors import UserError
from ducats.utils.image_files import PixelFormatError, check_image, load_image, suggest_range, value_limits
from image_kinds import (
    HEIGHT,
    VALUE_RANGE,
    WIDTH,
    ImageKind,
    image_kinds,
    png16_bytes,
    refused_kinds,
    tiff_bytes,
)


@pytest.mark.parametrize("kind", image_kinds(), ids=lambda kind: kind.name)
def test_readable_kinds(kind: ImageKind, tmp_path: Path) -> None:
    path = tmp_path / kind.name
    kind.write(path)
    value_range = VALUE_RANGE if kind.needs_range else None
    shown = np.asarray(load_image(path, value_range).convert("RGB")).astype(int)
    expected = kind.shown if kind.shown.ndim == 3 else kind.shown[..., None]
    assert np.abs(shown - expected).max() <= kind.tolerance
    check_image(path, value_range)
    for channels in (1, 3):
        options = {"channels": channels, "value_range": value_range}
        decoded = decode_images([("a", path)], (HEIGHT, WIDTH), **options).pixels[0].numpy()  # type: ignore[arg-type]
        streamed = decode_image_bytes(path.read_bytes(), (HEIGHT, WIDTH), **options)  # type: ignore[arg-type]
        np.testing.assert_array_equal(decoded, streamed)
    np.testing.assert_array_equal(decoded, shown.transpose(2, 0, 1))


@pytest.mark.parametrize("kind", [kind for kind in image_kinds() if kind.needs_range], ids=lambda k: k.name)
def test_more_than_eight_bits_need_a_range(kind: ImageKind, tmp_path: Path) -> None:
    path = tmp_path / kind.name
    kind.write(path)
    for read in (load_image, check_image):
        with pytest.raises(PixelFormatError, match=r"bits, \d band.*largest value .*data\.params\.range=\["):
            read(path)


@pytest.mark.parametrize("name", refused_kinds())
def test_lost_bands_are_refused(name: str, tmp_path: Path) -> None:
    content, reason = refused_kinds()[name]
    (tmp_path / name).write_bytes(content)
    for value_range in (None, VALUE_RANGE):
        ((_, found),) = find_unreadable([tmp_path / name], value_range)
        assert reason in found
        if name != "not-a-number.tif":  # known only after decoding
            with pytest.raises(PixelFormatError, match=reason):
                check_image(tmp_path / name, value_range)


def test_sentence_names_file_depth_bands_and_largest_value(tmp_path: Path) -> None:
    values = np.arange(64, dtype=np.uint16).reshape(8, 8) * 63
    (tmp_path / "x-ray.png").write_bytes(png16_bytes(values))
    with pytest.raises(UserError, match=r"x-ray\.png .16 bits, 1 band, largest value 3969.*range=\[0,4095\]"):
        decode_images([("a", tmp_path / "x-ray.png")], 8)


def test_cache_depends_on_the_range(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png16_bytes(np.full((8, 8), 1000, np.uint16)))
    for white in (4000, 2000):
        images = decode_images(
            [("a", tmp_path / "a.png")], 8, value_range=(0, white), cache=tmp_path / "cache", memory_gb=0.0
        )
        assert images.pixels[0].unique().tolist() == [round(255 * 1000 / white)]
        assert images.value_range == (0, white)


@pytest.mark.parametrize("given", [[0], [4095, 0], [0, "white"], 4095, [0, float("inf")], [True, 2]])
def test_invalid_ranges(given: object) -> None:
    with pytest.raises(UserError, match=r"data\.params\.range"):
        parse_value_range(given)  # type: ignore[arg-type]


def test_eight_bits_ignore_the_range(tmp_path: Path) -> None:
    Image.new("L", (2, 2), 77).save(tmp_path / "a.png")
    assert load_image(tmp_path / "a.png", (0, 100)).getpixel((0, 0)) == 77


def test_range_is_known_if_a_file_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png16_bytes(np.zeros((8, 8), np.uint16)))
    (tmp_path / "b.png").touch()
    files = [(name, tmp_path / name) for name in ("a.png", "b.png")]
    images = decode_images(files, 8, value_range=(0, 4095))
    assert (images.keys, images.value_range) == (("a.png",), (0, 4095))


def write_mixed_files(folder: Path) -> list[tuple[str, Path]]:
    """Write an image of 8 bits, five empty files, one with six bands, and one that needs a range."""
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    for number in range(5):
        (folder / f"empty-{number}.png").touch()
    (folder / "six-bands.tif").write_bytes(refused_kinds()["six-bands.tif"][0])
    (folder / "x-ray.png").write_bytes(png16_bytes(np.full((8, 8), 3000, np.uint16)))
    return sorted((path.name, path) for path in folder.iterdir())


@pytest.mark.parametrize("storage", ["memory", "file", "on demand"])
def test_missing_range_stops_a_run_but_not_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    files, memory_gb = write_mixed_files(tmp_path), 1.0 if storage == "memory" else 0.0
    if storage == "on demand":
        monkeypatch.setattr("ducats.data.store.free_disk_gb", lambda folder: 0.0)
        monkeypatch.setattr("ducats.data.store.ArrayStore.warn_if_on_demand", lambda store: None)
    with pytest.raises(UserError, match=r"7 of 8 .* read: \S+x-ray\.png .*data\.params\.range=\[0,4095\]"):
        decode_image_sets([files], 8, cache=None, memory_gb=memory_gb)
    (run,) = decode_image_sets([files[:-1]], 8, cache=None, memory_gb=memory_gb)
    new = decode_images(files, 8, memory_gb=memory_gb)
    assert run.keys == new.keys == ("a.png",)
    assert [path.name for path, _ in new.unreadable] == [name for name, _ in files[1:]]


def test_doctor_advises_a_range_for_a_folder(tmp_path: Path) -> None:
    write_mixed_files(tmp_path)
    (tmp_path / "six-deep-bands.tif").write_bytes(refused_kinds()["six-deep-bands.tif"][0])
    (tmp_path / "nan.tif").write_bytes(refused_kinds()["not-a-number.tif"][0])
    findings = [str(finding.message) for finding in diagnose_folder(tmp_path)]
    (advice,) = [message for message in findings if "data.params.range" in message]
    assert "1 of 10 images of the folder have more than 8 bits per value (16 bits, 1 band; values" in advice
    assert "from 3000 to 3000" in advice
    assert "data.params.range=[0,4095]" in advice
    (unreadable,) = [message for message in findings if "8 of 10 images cannot be read" in message]
    assert "x-ray.png" not in unreadable
    assert any("pixels: 1 RGB, 1 with 16 bits, 1 band" in message for message in findings)


def test_suggested_range_has_all_digits(tmp_path: Path) -> None:
    assert suggest_range(-1234567, 2345678) == "[-1234567,2345678]"
    (tmp_path / "a.tif").write_bytes(tiff_bytes([np.full((2, 2), 3_000_000_000, np.uint32)]))
    assert suggest_range(*value_limits(tmp_path / "a.tif")) == "[0,3000000000]"
