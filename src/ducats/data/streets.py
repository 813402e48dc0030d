"""Synthetic street scenes in two styles with exact label maps: segmentation without a download."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ducats.data.domain import VOID, AdaptationData, Domain, Images
from ducats.data.street_renderer import STREET_CLASSES, StreetStyle, interpolate_styles, render_street
from ducats.utils.errors import UserError


def _make_style(palette: Any, **ranges: Any) -> StreetStyle:
    """Build a ``StreetStyle`` from colours in percent by class name, and the other fields unchanged."""
    colours = np.array([palette[name] for name in STREET_CLASSES]) / 100
    return StreetStyle(
        palette=colours, **{name: np.array(value, dtype=np.float64) for name, value in ranges.items()}
    )


SOURCE_STYLE = _make_style(
    {
        "road": [(45, 46, 50), (40, 41, 45), (50, 50, 53)],
        "sidewalk": [(78, 66, 70), (74, 64, 66), (80, 72, 74)],
        "building": [(82, 50, 40), (88, 76, 52), (62, 42, 50)],
        "fence": [(60, 38, 16), (66, 44, 20), (52, 32, 14)],
        "pole": [(76, 77, 80), (70, 71, 74), (80, 80, 82)],
        "sign": [(94, 10, 12), (10, 22, 92), (90, 12, 14)],
        "vegetation": [(26, 70, 22), (34, 76, 26), (22, 60, 24)],
        "sky": [(50, 76, 98), (58, 80, 98), (46, 70, 96)],
        "person": [(98, 54, 10), (92, 20, 70), (96, 82, 12)],
        "car": [(86, 12, 14), (14, 24, 80), (92, 92, 94)],
    },
    camera=(1.7, 2.2),
    horizon=(0.40, 0.46),
    bend=(-0.05, 0.05),
    lane=(-1.0, 1.0),
    road=(4.5, 5.5),
    pavement=(2.5, 3.5),
    setback=(0.5, 2.0),
    storeys=(2, 5),
    house_fraction=0.6,
    fence_fraction=0.3,
    parked=(1, 4),
    moving=(0, 3),
    people=(1, 5),
    poles=(2, 5),
    sign_fraction=0.6,
    trees=(1, 4),
    colour_std=0.03,
    texture=[0.04] * len(STREET_CLASSES),
    marking_strength=1.0,
    haze=0.0,
    shadow=(0.0, 0.2),
    exposure=(0.8, 1.1),
    channel_gain_std=0.02,
    vignette=0.0,
    blur_passes=0.0,
    noise_std=0.01,
)

TARGET_STYLE = _make_style(
    {
        "road": [(45, 45, 47), (40, 40, 43), (50, 49, 50)],
        "sidewalk": [(76, 65, 68), (71, 62, 64), (77, 69, 70)],
        "building": [(76, 49, 40), (82, 71, 51), (58, 41, 47)],
        "fence": [(50, 34, 20), (42, 32, 22), (46, 40, 32)],
        "pole": [(28, 28, 30), (40, 40, 42), (54, 54, 57)],
        "sign": [(84, 66, 14), (16, 34, 66), (74, 18, 16)],
        "vegetation": [(26, 58, 20), (28, 56, 20), (32, 50, 21)],
        "sky": [(56, 76, 94), (66, 79, 92), (50, 69, 90)],
        "person": [(62, 36, 14), (48, 14, 38), (14, 28, 50)],
        "car": [(68, 68, 70), (14, 20, 50), (62, 13, 14)],
    },
    camera=(1.3, 1.8),
    horizon=(0.42, 0.54),
    bend=(-0.15, 0.15),
    lane=(-1.6, 1.6),
    road=(3.5, 5.5),
    pavement=(1.5, 4.0),
    setback=(0.0, 4.0),
    storeys=(1, 6),
    house_fraction=0.55,
    fence_fraction=0.15,
    parked=(2, 8),
    moving=(0, 3),
    people=(0, 2),
    poles=(0, 3),
    sign_fraction=0.5,
    trees=(0, 5),
    colour_std=0.03,
    texture=[0.06, 0.06, 0.10, 0.25, 0.05, 0.05, 0.30, 0.03, 0.10, 0.06],
    marking_strength=0.3,
    haze=0.3,
    shadow=(0.1, 0.3),
    exposure=(0.65, 1.0),
    channel_gain_std=0.02,
    vignette=0.3,
    blur_passes=0.5,
    noise_std=0.015,
)


def streets(
    *,
    n_source: int = 160,
    n_pool: int = 120,
    n_test: int = 60,
    height: int = 64,
    width: int = 128,
    domain_shift: float = 1.0,
    seed: int = 0,
) -> AdaptationData:
    """Make street scenes with per-pixel labels of ten classes.

    The source looks rendered. The target looks like a dim, blurred, noisy dashboard camera: large things
    (road, sky, houses) differ a little from the source, small and rare ones (fences, poles, signs, people) a
    lot; there are more parked cars, and streets bend. In the target, the car's own bonnet and a frame of one
    pixel are void; ``Images.void_masks`` marks them.

    Args:
        n_pool: Number of unlabelled target images (ground truth in ``AdaptationData.ground_truth``).
        n_test: Number of held-out target images; 0 for none.
        domain_shift: Strength of the domain shift, 0 to 2. 0: none, except for the bonnet; 1: large; more:
            larger.
        seed: An image depends only on the seed, its domain and its index.

    >>> data = streets(n_source=3, n_pool=2, n_test=1)
    >>> data.source.labels.shape, data.pool.pixels.shape, data.pool.keys
    (torch.Size([3, 64, 128]), torch.Size([2, 3, 64, 128]), ('pool/000', 'pool/001'))
    """
    _check(domain_shift, n_source=n_source, n_pool=n_pool, n_test=n_test, height=height, width=width)
    source_rng, pool_rng, test_rng = np.random.default_rng(seed).spawn(3)
    target_style, shape = interpolate_styles(SOURCE_STYLE, TARGET_STYLE, domain_shift), (height, width)
    void = _void_mask(*shape)
    source_domain = _make_domain("source", n_source, SOURCE_STYLE, np.zeros(shape, np.bool_), source_rng)
    pool_domain = _make_domain("pool", n_pool, target_style, void, pool_rng)
    test_domain = _make_domain("test", n_test, target_style, void, test_rng) if n_test else None
    return AdaptationData(
        source=source_domain, pool=pool_domain.images, ground_truth=pool_domain.labels, test=test_domain
    )


def _check(domain_shift: float, **given: int) -> None:
    """Raise if an argument is out of range."""
    minimum = {"n_source": 1, "n_pool": 1, "n_test": 0, "height": 16, "width": 16}
    for name, value in given.items():
        if value < minimum[name]:
            raise UserError(f"streets: {name} must be at least {minimum[name]}, got {value}")
    if not 0 <= domain_shift <= 2:
        raise UserError(f"streets: domain_shift must be between 0 (none) and 2 (largest), got {domain_shift}")


def _make_domain(
    name: str, count: int, style: StreetStyle, void: NDArray[np.bool_], generator: np.random.Generator
) -> Domain:
    """Make ``count`` images, each with its own random stream: more images do not change the first ones."""
    rendered = [_render_with_bonnet(style, void, stream) for stream in generator.spawn(count)]
    keys = tuple(f"{name}/{i:03d}" for i in range(count))
    pixels = torch.from_numpy(np.stack([image for image, _ in rendered]))
    label_maps = torch.from_numpy(np.stack([labels for _, labels in rendered]))
    void_masks = torch.from_numpy(void).expand(count, *void.shape) if void.any() else None
    sizes = torch.tensor(void.shape).expand(count, 2)
    return Domain(
        Images(keys, pixels, original_sizes=sizes, void_masks=void_masks), label_maps, STREET_CLASSES
    )


def _render_with_bonnet(
    style: StreetStyle, void: NDArray[np.bool_], generator: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    """Make one street with the bonnet: uint8 (3, height, width) and int8 (height, width)."""
    height, width = void.shape
    image, labels = render_street(style, height, width, generator)
    # Dark paint that reflects a little sky along its edge. The frame shows the street: a black frame would be
    # an edge that no source image has, and pixels next to it would be selected first.
    bonnet = void.copy()
    bonnet[: len(void) // 2] = bonnet[:, 0] = bonnet[:, -1] = False
    paint = 0.12 + 0.1 * (np.roll(bonnet, 2, 0) < bonnet) + generator.normal(0, 0.02, void.shape)
    image[bonnet] = paint[bonnet][:, None]
    labels[void] = VOID
    return (image.clip(0, 1) * 255).round().astype(np.uint8).transpose(2, 0, 1).copy(), labels


def _void_mask(height: int, width: int) -> NDArray[np.bool_]:
    """Return the void mask of the target: the car's bonnet and a frame of one pixel."""
    across = (2 * np.arange(width) + 1 - width) / width
    top = 1 - 0.1 * (1 - 0.6 * across * across)
    void = ((np.arange(height) + 0.5) / height)[:, None] > top[None]
    void[0] = void[-1] = void[:, 0] = void[:, -1] = True
    return np.asarray(void)
