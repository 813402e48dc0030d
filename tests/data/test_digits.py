from pathlib import Path
from typing import Any

import pytest
import torch

from ducats.data.digits import DIGIT_CLASSES, FONTS, digits
from ducats.data.domain import AdaptationData
from ducats.utils.errors import UserError


@pytest.fixture(scope="module")
def data() -> AdaptationData:
    return digits(n_source=400)


def test_shapes_and_classes(data: Any) -> None:
    for images, labels, count in (
        (data.source.images, data.source.labels, 400),
        (data.pool, data.ground_truth, 1297),
        (data.test.images, data.test.labels, 500),
    ):
        assert (images.pixels.shape, images.pixels.dtype) == ((count, 1, 16, 16), torch.uint8)
        assert (labels.shape, labels.dtype) == ((count,), torch.int64)
        assert not torch.equal(labels[:10], torch.arange(10))  # shuffled
    assert data.source.labels[:].bincount().tolist() == [40] * 10
    assert data.ground_truth[:].bincount().min() > 110
    assert data.classes == DIGIT_CLASSES
    other = digits(n_source=10, n_test=100, size=28)
    assert other.pool.pixels.shape == (1697, 1, 28, 28)
    assert other.source.images.pixels.shape == (10, 1, 28, 28)


def test_pool_and_test_split_scikit_learns_digits(data: Any) -> None:
    assert set(data.pool.keys) | set(data.test.images.keys) == {f"handwritten/{i:04d}" for i in range(1797)}
    from sklearn.datasets import load_digits

    whole = load_digits()
    for key, pixels, label in zip(
        data.pool.keys[:50], data.pool.pixels[:50], data.ground_truth[:50], strict=True
    ):
        index = int(key.split("/")[1])
        assert whole.target[index] == label
        small = torch.nn.functional.avg_pool2d(pixels.float(), 2)[0] / 255 * 16
        assert (small - torch.from_numpy(whole.images[index])).abs().mean() < 1


def test_ink_is_white_on_black_in_both_domains(data: AdaptationData) -> None:
    for pixels in (data.source.images.pixels[:], data.pool.pixels[:]):
        border = torch.cat([pixels[..., 0].flatten(), pixels[..., -1].flatten()]).float().mean()
        assert border < 25
        assert pixels.flatten(1).amax(1).float().mean() > 180


def test_every_font_has_ten_different_digits() -> None:
    from ducats.data.digits import _render_masters

    glyphs = _render_masters()
    assert len(glyphs) == len(FONTS) == 21
    for strokes in glyphs:
        for masters in strokes:
            assert len({glyph.tobytes() for glyph in masters}) == 10
            for glyph in masters:
                left, top, right, bottom = glyph.getbbox() or (0, 0, 0, 0)
                assert 40 <= bottom - top <= 52
                assert left > 0 < top
                assert right < 64 > bottom


def test_seed_determines_the_source_only(data: Any) -> None:
    again, other = digits(n_source=400), digits(n_source=400, seed=1)
    assert torch.equal(again.source.images.pixels[:], data.source.images.pixels[:])
    assert torch.equal(again.source.labels[:], data.source.labels[:])
    assert not torch.equal(other.source.images.pixels[:], data.source.images.pixels[:])
    assert other.test is not None
    assert other.test.images.keys == data.test.images.keys
    assert other.pool.keys == data.pool.keys
    assert torch.equal(other.pool.pixels[:], data.pool.pixels[:])
    assert data.test.images.keys[:3] == ("handwritten/1584", "handwritten/0198", "handwritten/0304")


@pytest.mark.parametrize("wrong", [{"n_source": 9}, {"n_test": 0}, {"n_test": 1797}, {"size": 4}])
def test_rejects_invalid_numbers(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        digits(**wrong)


def test_missing_fonts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with pytest.raises(UserError, match=r"lacks DejaVuSans, .*; reinstall matplotlib"):
        digits(n_source=10)
