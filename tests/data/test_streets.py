from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ducats.data.domain import VOID, AdaptationData
from ducats.data.street_renderer import STREET_CLASSES, interpolate_styles, render_street
from ducats.data.streets import SOURCE_STYLE, TARGET_STYLE, streets
from ducats.utils.errors import UserError


@pytest.fixture(scope="module")
def data() -> AdaptationData:
    return streets(n_source=24, n_pool=24, n_test=5)


def test_shapes_and_names(data: Any) -> None:
    assert data.source.images.pixels.shape == (24, 3, 64, 128)
    assert data.source.labels.shape == (24, 64, 128)
    assert data.source.per_pixel
    assert data.ground_truth.dtype == torch.int8
    assert data.test.labels.shape == (5, 64, 128)
    assert data.pool.keys[17] == "pool/017"
    assert data.pool.original_sizes.unique(dim=0).tolist() == [[64, 128]]
    assert tuple(data.classes) == STREET_CLASSES == data.test.classes
    assert streets(n_source=1, n_pool=1, n_test=0).test is None


def test_void_masks_mark_all_void_pixels(data: Any) -> None:
    void = data.pool.void_masks[:].bool()
    assert torch.equal(void, data.ground_truth[:] == VOID)
    assert torch.equal(void[:5], data.test.labels[:] == VOID)
    assert bool(void[:, 0].all() and void[:, :, -1].all() and void[:, -4, 64].all())
    assert 0.05 < float(void.float().mean()) < 0.2
    assert data.source.images.void_masks is None
    assert int(data.source.labels[:].min()) == 0


def test_both_domains_have_every_class_and_small_objects_are_rare(data: Any) -> None:
    for maps in (data.source.labels[:], data.ground_truth[:]):
        fraction = torch.bincount(maps[maps >= 0].long(), minlength=len(STREET_CLASSES)) / (maps >= 0).sum()
        assert len(fraction) == len(STREET_CLASSES)
        assert float(fraction.min()) > 0.001
        for name in ("pole", "sign", "person"):
            assert float(fraction[STREET_CLASSES.index(name)]) < 0.03
        assert float(fraction[STREET_CLASSES.index("road")]) > 0.15


def test_seed_determines_images_and_counts_are_independent() -> None:
    one: Any = streets(n_source=2, n_pool=2, n_test=1)
    more: Any = streets(n_source=4, n_pool=3, n_test=2)
    other = streets(n_source=2, n_pool=2, n_test=1, seed=1)
    assert torch.equal(one.source.images.pixels[:], more.source.images.pixels[:2])
    assert torch.equal(one.pool.pixels[:], more.pool.pixels[:2])
    assert torch.equal(one.ground_truth[:], more.ground_truth[:2])
    assert not torch.equal(one.pool.pixels[:], other.pool.pixels[:])
    assert not torch.equal(more.pool.pixels[0], more.pool.pixels[1])


def class_mean_colours(pixels: Tensor, maps: Tensor) -> Tensor:
    """Return the mean colour of each class: (classes, 3), from 0 to 255."""
    means = [pixels.movedim(1, -1)[maps == label].float().mean(0) for label in range(len(STREET_CLASSES))]
    return torch.stack(means)


def test_parameter_scales_the_domain_shift() -> None:
    gaps, ious = [], {}
    for domain_shift in (0.0, 0.5, 1.0):
        data: Any = streets(n_source=20, n_pool=20, n_test=12, height=32, width=64, domain_shift=domain_shift)
        source_means = class_mean_colours(data.source.images.pixels[:], data.source.labels[:])
        target_means = class_mean_colours(data.pool.pixels[:], data.ground_truth[:])
        gaps.append(float((source_means - target_means).abs().mean()))
        pixels, maps = data.test.images.pixels[:], data.test.labels[:]
        ious[domain_shift] = [
            mean_iou(classify_by_colour(means, pixels), maps) for means in (source_means, target_means)
        ]
    assert gaps[0] < 8 < 2 * gaps[0] < gaps[1] < gaps[2]
    # The source's colours mislead on the target, whose colours overlap more.
    assert ious[0.0][0] > 0.9 * ious[0.0][1]
    assert ious[1.0][0] < 0.8 * ious[1.0][1]
    assert ious[1.0][1] < ious[0.0][1]


def mean_iou(predicted: Tensor, maps: Tensor) -> float:
    """Return the mean intersection over union, ignoring void pixels."""
    counts = maps >= 0
    ious = []
    for label in range(len(STREET_CLASSES)):
        guess, true = (predicted == label) & counts, maps == label
        ious.append(float((guess & true).sum() / (guess | true).sum()))
    return sum(ious) / len(ious)


def classify_by_colour(means: Tensor, pixels: Tensor) -> Tensor:
    """Return the class with the nearest mean colour for each pixel."""
    difference = pixels.float()[:, None] - means[None, :, :, None, None]
    return difference.square().sum(2).argmin(1)


def test_interpolation_ends_at_both_styles() -> None:
    for domain_shift, style in ((0.0, SOURCE_STYLE), (1.0, TARGET_STYLE)):
        found = interpolate_styles(SOURCE_STYLE, TARGET_STYLE, domain_shift)
        assert np.array_equal(found.palette, style.palette)


@pytest.mark.parametrize("size", [(16, 16), (40, 50), (128, 64)], ids=str)
@pytest.mark.parametrize("domain_shift", [0.0, 2.0])
def test_any_size_and_domain_shift(size: tuple[int, int], domain_shift: float) -> None:
    data: Any = streets(
        n_source=1, n_pool=2, n_test=1, height=size[0], width=size[1], domain_shift=domain_shift
    )
    assert data.pool.pixels.shape == (2, 3, *size)
    assert int(data.ground_truth[:].max()) < len(STREET_CLASSES)


def test_road_is_below_the_sky() -> None:
    image, labels = render_street(SOURCE_STYLE, 64, 128, np.random.default_rng(3))
    assert image.shape == (64, 128, 3)
    assert image.min() >= 0
    assert image.max() <= 1
    rows = np.arange(64)[:, None] + np.zeros((1, 128))
    sky, road = (rows[labels == STREET_CLASSES.index(name)] for name in ("sky", "road"))
    assert sky.max() < road.min()


@pytest.mark.parametrize(
    "wrong", [{"n_source": 0}, {"n_pool": 0}, {"n_test": -1}, {"height": 15}, {"width": 8}], ids=str
)
def test_rejects_invalid_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"streets: {next(iter(wrong))} must be at least"):
        streets(**wrong)
    for domain_shift in (-0.1, 2.5, float("nan")):
        with pytest.raises(UserError, match="must be between 0"):
            streets(domain_shift=domain_shift)
