"""Views, compared with torchvision on single images with the same augmentation parameters."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
from PIL import Image
from scipy.stats import chisquare, ks_2samp
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchvision.transforms.v2 import functional as TF

from ducats.data.colour_jitter import (
    JITTER_FACTOR_COLUMNS,
    JITTER_ORDER_COLUMNS,
    color_jitter,
    shift_hue,
)
from ducats.data.views import (
    FLIP_COLUMN,
    N_AUG_PARAMS,
    apply_view,
    apply_view_to_labels,
    resize_batched,
    resize_one_by_one,
    sample_crop_boxes,
    sample_view_params,
)
from ducats.settings import View
from ducats.utils.randomness import make_generator

HEIGHT, WIDTH = 20, 26
STRONG_JITTER = (0.8, 0.8, 0.8, 0.5)
USUAL_JITTER = (0.4, 0.4, 0.4, 0.1)
ADJUST = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
MIN_P_VALUE = 1e-3  # smallest accepted p-value; seeds are fixed, so no test fails by chance


def noise(count: int = 12, channels: int = 3, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    shape = (count, channels, height, width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def sample_params_for(view: View, images: Tensor, *use: str | int) -> Tensor:
    count, _, height, width = images.shape
    return sample_view_params(view, count, height, width, make_generator(0, *use))


def torchvision_reference(image: Tensor, view: View, aug_params: Tensor) -> Tensor:
    """Apply torchvision's operations to one image."""
    augmented = image.float() / 255
    top, left, height, width = aug_params[:4].int().tolist()
    size = list(view.output_size(*image.shape[-2:]))
    if view.crop == "random_resized":
        augmented = TF.resized_crop(augmented, top, left, height, width, size, antialias=True)
    elif view.crop == "random":
        padded = TF.pad(augmented, [view.pad], padding_mode="edge")
        augmented = TF.crop(padded, top + view.pad, left + view.pad, *size)
    elif view.crop == "center":
        augmented = TF.center_crop(augmented, size)
    elif view.crop == "none" and view.size:
        augmented = TF.resize(augmented, size, antialias=True)
    if aug_params[FLIP_COLUMN]:
        augmented = TF.horizontal_flip(augmented)
    for kind in aug_params[JITTER_ORDER_COLUMNS].int().tolist():
        if view.jitter[kind]:
            augmented = ADJUST[kind](augmented, float(aug_params[JITTER_FACTOR_COLUMNS][kind]))
    return augmented


def check_against_torchvision(
    images: Tensor, view: View, within: float, aug_params: Tensor | None = None
) -> None:
    aug_params = sample_params_for(view, images) if aug_params is None else aug_params
    augmented = apply_view(images, view, aug_params)
    expected = torch.stack(
        [torchvision_reference(image, view, row) for image, row in zip(images, aug_params, strict=True)]
    )
    assert augmented.dtype == torch.float32
    assert augmented.shape == expected.shape
    torch.testing.assert_close(augmented, expected, rtol=0, atol=within)


# -- equal to torchvision for the same parameters ----------------------------------------------------


@pytest.mark.parametrize("flip", [0.0, 0.5])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "view",
    [
        {},
        {"crop": "center", "size": 12},
        {"crop": "center", "size": 13},  # an odd margin
        {"crop": "random", "size": 16},
        {"crop": "random", "size": 20, "pad": 3},
        {"crop": "random", "size": 23, "pad": 2},  # larger than the image
    ],
    ids=str,
)
def test_plain_crops_are_exact(view: dict[str, Any], channels: int, flip: float) -> None:
    check_against_torchvision(noise(channels=channels), View(**view, flip=flip), within=0)


@pytest.mark.parametrize("size", [7, 20, 26, 33, (9, 14)])
@pytest.mark.parametrize("crop", ["none", "random_resized"])
def test_resizing(crop: Any, size: Any) -> None:
    for channels in (1, 3):
        check_against_torchvision(noise(channels=channels), View(crop=crop, size=size, flip=0.5), within=5e-6)


@pytest.mark.parametrize("size", [7, 20, 33])
def test_batched_resizing_equals_resizing_one_by_one(size: int) -> None:
    images, view = noise(40), View(crop="random_resized", size=size, scale=(0.01, 1.0), flip=0.5)
    aug_params = sample_params_for(view, images)
    batched, one_by_one = (r(images, aug_params, (size, size)) for r in (resize_batched, resize_one_by_one))
    torch.testing.assert_close(batched, one_by_one, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "jitter",
    [
        *np.diag(STRONG_JITTER).tolist(),
        *(USUAL_JITTER, STRONG_JITTER),
        *((0.4, 0, 0, 0.1), (0, 0.4, 0.4, 0), (0.8, 0.8, 0, 0.5), (0.8, 0.8, 0.8, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [1, 3])
def test_colour_jitter_in_every_order(jitter: Any, channels: int) -> None:
    orders = torch.tensor(list(permutations(range(4)))).float()
    images, view = noise(len(orders), channels), View(jitter=tuple(jitter))
    aug_params = sample_params_for(view, images)
    aug_params[:, JITTER_ORDER_COLUMNS] = orders
    check_against_torchvision(images, view, within=1e-5, aug_params=aug_params)


def test_hue_shift() -> None:
    levels = torch.linspace(0, 1, 9)
    tiny = torch.tensor([0.0, 1e-45, 1e-40, 1e-30, 1e-8, 0.5, 0.5 + 1e-7, 1.0])  # nearly grey
    colours = [
        torch.cartesian_prod(values, values, values).T.reshape(1, 3, 1, -1) for values in (levels, tiny)
    ]
    for hue_shift in (-0.5, -1 / 3, -0.123, 0.0, 0.1, 1 / 6, 0.3, 0.4, 0.5):
        for images in colours:
            augmented = shift_hue(images, torch.tensor([hue_shift]))
            torch.testing.assert_close(augmented, TF.adjust_hue(images, hue_shift), rtol=0, atol=2e-6)
            assert float(augmented.min()) >= 0
            assert float(augmented.max()) <= 1


def test_chunks_do_not_change_colour_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    images = noise(7).float() / 255
    aug_params = sample_params_for(View(jitter=USUAL_JITTER), images)
    whole = color_jitter(images, USUAL_JITTER, aug_params)
    monkeypatch.setattr("ducats.data.colour_jitter._CPU_CHUNK_VALUES", 2 * images[0].numel())  # two at a time
    assert torch.equal(color_jitter(images, USUAL_JITTER, aug_params), whole)


@pytest.mark.parametrize("crop", ["none", "center", "random", "random_resized"])
def test_the_whole_chain(crop: Any) -> None:
    view = View(crop=crop, size=15, flip=0.5, jitter=USUAL_JITTER)
    for images in (noise(24, 1), noise(24)):
        check_against_torchvision(images, view, within=1e-5)
    assert apply_view(noise(0), view, sample_params_for(view, noise(0))).shape == (0, 3, 15, 15)


def test_autocast_does_not_change_views() -> None:
    images, view = noise(), View(crop="random", size=16, resize="short_side", jitter=USUAL_JITTER)
    aug_params = sample_view_params(view, 12, HEIGHT, WIDTH, make_generator(0), torch.full((12,), 1.3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        augmented = apply_view(images, view, aug_params)
    assert torch.equal(augmented, apply_view(images, view, aug_params))


def test_rejects_a_crop_that_does_not_fit() -> None:
    for view in (View(crop="center", size=21), View(crop="random", size=24, pad=1)):
        with pytest.raises(ValueError, match="does not fit"):
            sample_view_params(view, 1, HEIGHT, WIDTH, make_generator(0))
    with pytest.raises(ValueError, match="does not fit"):
        apply_view(noise(), View(crop="center", size=21), torch.zeros(12, N_AUG_PARAMS))
    with pytest.raises(ValueError, match="1 or 3 channels, not 2"):
        apply_view(noise(channels=2), View(jitter=USUAL_JITTER), torch.zeros(12, N_AUG_PARAMS))


# -- augmentation parameters -------------------------------------------------------------------------

VIEWS = [
    View(),
    View(size=9, flip=0.3),
    View(size=9),
    View(crop="center", size=12),
    View(crop="center", size=12, resize="short_side"),
    View(crop="random", size=16, pad=2, flip=0.5),
    View(crop="random_resized", size=15, flip=0.5, jitter=USUAL_JITTER),
    View(crop="none", jitter=(0.4, 0, 0, 0)),
    View(crop="center", size=14, resize="short_side", flip=0.5),
    View(crop="random", size=14, resize="short_side", jitter=(0, 0, 0, 0.1)),
]


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_generator_determines_the_parameters(view: View) -> None:
    aspect = torch.linspace(0.4, 2.5, 30)
    one, two, other = (
        sample_view_params(view, 30, HEIGHT, WIDTH, make_generator(seed), aspect) for seed in (1, 1, 2)
    )
    assert one.shape == (30, N_AUG_PARAMS)
    assert one.dtype == torch.float32
    assert torch.equal(one, two)
    random = view.crop in ("random", "random_resized") or view.flip or any(view.jitter)
    assert torch.equal(one, other) == (not random)
    assert torch.equal(one[:, JITTER_ORDER_COLUMNS].sort(1).values, torch.arange(4.0).expand(30, 4))
    generator = make_generator(0)
    before = generator.get_state()
    sample_view_params(view, 30, HEIGHT, WIDTH, generator, aspect)
    assert torch.equal(generator.get_state(), before) == (not random)


def test_boxes_of_deterministic_views() -> None:
    none, center = (
        sample_view_params(view, 2, 20, 27, make_generator(0))[:, :4]
        for view in (View(), View(crop="center", size=12))
    )
    assert none.tolist() == [[0, 0, 20, 27]] * 2
    assert center.tolist() == [[4, 8, 12, 12]] * 2  # 7.5 is rounded to even, as in Python


SHAPES: list[Any] = [
    ((0.08, 1.0), (3 / 4, 4 / 3), (24, 32)),
    ((0.5, 0.9), (0.5, 2.0), (64, 48)),
    ((0.9, 1.0), (3.0, 4.0), (25, 32)),  # mostly nothing fits
]


@pytest.mark.parametrize(("scale", "ratio", "sides"), SHAPES, ids=str)
def test_boxes_are_distributed_as_in_torchvision(scale: Any, ratio: Any, sides: tuple[int, int]) -> None:
    count = 2000
    ours = sample_crop_boxes(count, *sides, scale, ratio, make_generator(0)).numpy()
    transform, image = T.RandomResizedCrop(8, scale=scale, ratio=ratio), torch.empty(1, *sides)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        params = [transform.make_params([image]) for _ in range(count)]
    tvs = np.array([[p["top"], p["left"], p["height"], p["width"]] for p in params], dtype=float)
    for boxes in (ours, tvs):
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= sides).all()

    def measures(b: Any) -> list[Any]:
        centres = b[:, :2] + b[:, 2:] / 2
        return [b[:, 0], b[:, 1], b[:, 2] * b[:, 3], b[:, 3] / b[:, 2], centres[:, 0], centres[:, 1]]

    for one, two in zip(measures(ours), measures(tvs), strict=True):
        assert ks_2samp(one, two).pvalue > MIN_P_VALUE


def test_fallback_box_equals_torchvisions() -> None:
    for sides in ((25, 32), (32, 25), (7, 50), (50, 7)):
        for ratio in ((3.0, 4.0), (0.2, 0.3)):
            scale = (1.0, 1.0)
            found = T.RandomResizedCrop(8, scale=scale, ratio=ratio).make_params([torch.empty(1, *sides)])
            ours = sample_crop_boxes(3, *sides, scale, ratio, make_generator(0))
            assert ours.tolist() == [[found[n] for n in ("top", "left", "height", "width")]] * 3


def assert_uniform(found: Tensor, values: range) -> None:
    numbers = found.int().tolist()
    counts = [numbers.count(value) for value in values]
    assert sum(counts) == len(numbers)
    assert chisquare(counts).pvalue > MIN_P_VALUE


def test_factors_and_orders_are_distributed_as_in_torchvision() -> None:
    count, jitter = 2000, (0.4, 1.5, 0.2, 0.1)
    aug_params = sample_view_params(View(jitter=jitter), count, 8, 8, make_generator(0)).numpy()
    transform = T.ColorJitter(*jitter)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        params = [transform.make_params([]) for _ in range(count)]
    for kind, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        tvs = np.array([p[f"{name}_factor"] for p in params])
        assert ks_2samp(aug_params[:, JITTER_FACTOR_COLUMNS][:, kind], tvs).pvalue > MIN_P_VALUE
    assert aug_params[:, JITTER_FACTOR_COLUMNS][:, 1].min() >= 0
    every_order = list(permutations(range(4)))
    orders = [every_order.index(tuple(row)) for row in aug_params[:, JITTER_ORDER_COLUMNS].astype(int)]
    assert_uniform(torch.tensor(orders), range(24))


def test_positions_of_random_crops_are_uniform() -> None:
    aug_params = sample_view_params(View(crop="random", size=16, pad=2), 6000, 20, 24, make_generator(0))
    assert_uniform(aug_params[:, 0], range(-2, 7))
    assert_uniform(aug_params[:, 1], range(-2, 11))


def test_flip_probability_and_correlations() -> None:
    aug_params = sample_view_params(
        View(crop="random", size=16, flip=0.3, jitter=USUAL_JITTER), 10_000, 20, 20, make_generator(0)
    )
    assert abs(float(aug_params[:, FLIP_COLUMN].mean()) - 0.3) < 4 * (0.3 * 0.7 / 10_000) ** 0.5
    varied = aug_params[:, [0, 1, FLIP_COLUMN, *range(5, 10)]]
    correlation = torch.corrcoef(varied.T) - torch.eye(8)
    assert float(correlation.abs().max()) < 0.045
    lagged = torch.corrcoef(torch.cat([varied[1:], varied[:-1]], dim=1).T)[:8, 8:]
    assert float(lagged.abs().max()) < 0.045


# -- the short side ----------------------------------------------------------------------------------


def smooth_image(width: int, height: int) -> Image.Image:
    """Make an image as smooth as a photograph: a few waves, none shorter than a sixteenth of its side."""
    random = np.random.default_rng(width)
    y, x = np.mgrid[0:height, 0:width] / [[[height]], [[width]]]
    waves = [
        np.cos(2 * np.pi * (u * x + v * y) + phase)
        for u, v, phase in random.uniform(-16, 16, (12, 3)) * [[1, 1, 0.2]]
    ]
    colours = random.uniform(-1, 1, (3, 12)) @ np.stack(waves).reshape(12, -1)
    scaled = 127.5 + 110 * colours / np.abs(colours).max(1, keepdims=True)
    return Image.fromarray(scaled.T.reshape(height, width, 3).astype(np.uint8))


def store_image(image: Image.Image, side: int) -> Tensor:
    """Resize an image as ``decode_images`` does."""
    squashed = image.resize((side, side), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(squashed).copy()).permute(2, 0, 1)[None]


@pytest.mark.parametrize("crop", ["center", "random"])
@pytest.mark.parametrize("sides", [(400, 300), (300, 300), (301, 487)])
def test_short_side_equals_torchvision(sides: tuple[int, int], crop: Any) -> None:
    side, size = 256, 224
    image = smooth_image(*sides)
    view = View(crop=crop, size=size, resize="short_side")
    aug_params = sample_view_params(
        view, 5, side, side, make_generator(1), torch.tensor([sides[0] / sides[1]]).expand(5)
    )
    augmented = apply_view(store_image(image, side).expand(5, -1, -1, -1), view, aug_params)
    resized = TF.pil_to_tensor(TF.resize(image, [side])).float() / 255  # the published pipeline, with Pillow
    height, width = resized.shape[-2:]
    for ours, row in zip(augmented, aug_params, strict=True):
        top, left = float(row[0]) * height / side, float(row[1]) * width / side
        assert abs(top - round(top)) + abs(left - round(left)) < 1e-3
        expected = TF.crop(resized, round(top), round(left), size, size)
        if crop == "center":
            assert torch.equal(expected, TF.center_crop(resized, [size, size]))
        assert float((ours - expected).abs().mean()) < 0.6 / 255
        assert float((ours - expected).abs().max()) < 4 / 255


def test_positions_along_the_long_side_are_uniform() -> None:
    view = View(crop="random", size=224, resize="short_side")
    aug_params = sample_view_params(
        view, 8000, 256, 256, make_generator(0), torch.full((8000,), 1.1)
    ).double()  # 281 wide
    assert torch.allclose(aug_params[:, 2:4], torch.tensor([224.0, 224 * 256 / 281]).double())
    for column, longest in ((0, 256), (1, 281)):
        assert_uniform((aug_params[:, column] * longest / 256).round(), range(longest - 224 + 1))


def test_long_sides_equal_those_of_resize() -> None:
    """Also if the float32 ratio times the side is just below a whole number."""
    sides = torch.tensor([[w, h] for w in range(40, 400, 7) for h in range(40, 400, 9)])
    view, side = View(crop="center", size=200, resize="short_side"), 200
    aspect = (sides[:, 0] / sides[:, 1]).float()
    boxes = sample_view_params(view, len(sides), side, side, make_generator(0), aspect)[:, :4].double()
    found = (side * 200 / boxes[:, 2:]).round().int().tolist()
    expected = [
        [int(side * max(h, w) / w) if h > w else side, int(side * max(h, w) / h) if w > h else side]
        for w, h in sides.tolist()
    ]
    assert found == expected


def test_short_side_needs_the_aspect_ratio() -> None:
    with pytest.raises(ValueError, match="aspect"):
        sample_view_params(View(crop="center", size=8, resize="short_side"), 2, 16, 16, make_generator(0))
    refused: list[dict[str, Any]] = [{}, {"crop": "random_resized"}, {"crop": "random", "pad": 1}]
    for view in refused:
        with pytest.raises(ValueError, match="short_side"):
            View(**view, resize="short_side")


# -- no synchronisation with a GPU -------------------------------------------------------------------


class OnDeviceOnly(TorchDispatchMode):
    """Rejects operations that a CUDA graph cannot record, such as tensors created on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            assert not isinstance(leaf, Tensor) or leaf.device.type == "cuda", f"{func} on the host"
        return result


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_views_never_synchronise_the_device(view: View, channels: int) -> None:
    with FakeTensorMode():  # fake tensors have no values: reading one is an error; needs no GPU
        images = torch.empty(4, channels, HEIGHT, WIDTH, dtype=torch.uint8, device="cuda")
        aug_params = torch.empty(4, N_AUG_PARAMS, device="cuda")
        with OnDeviceOnly():  # type: ignore[no-untyped-call]
            augmented = apply_view(images, view, aug_params)
    assert augmented.shape == (4, channels, view.size or HEIGHT, view.size or WIDTH)


def test_synchronisation_would_be_detected() -> None:
    with FakeTensorMode():
        aug_params = torch.empty(4, N_AUG_PARAMS, device="cuda")
        with OnDeviceOnly(), pytest.raises(AssertionError, match="host"):  # type: ignore[no-untyped-call]
            aug_params * torch.arange(N_AUG_PARAMS)
        for wait in (lambda: float(aug_params.sum()), lambda: aug_params[aug_params > 0]):
            with pytest.raises(Exception, match=r"aten\."):
                wait()


@pytest.mark.gpu
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_cuda_graph_equals_cpu(view: View) -> None:
    images, aspect = noise(height=WIDTH), torch.linspace(0.4, 2.5, 12)
    first, second = (
        sample_view_params(view, 12, WIDTH, WIDTH, make_generator(seed), aspect) for seed in (1, 2)
    )
    gpu_images, aug_params = images.cuda(), first.cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        apply_view(gpu_images, view, aug_params)  # libraries initialise outside the graph
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        augmented = apply_view(gpu_images, view, aug_params)
    for new_params in (first, second):
        aug_params.copy_(new_params)
        graph.replay()
        torch.testing.assert_close(augmented.cpu(), apply_view(images, view, new_params), rtol=0, atol=1e-5)


# ---- label maps


def labels_like(images: Tensor) -> Tensor:
    """Make label maps from the images' grey levels; both must be transformed in the same way."""
    return (images[:, 0] // 16).to(torch.int8)


def block_images(count: int = 6, height: int = 24, width: int = 40) -> Tensor:
    """Make images of constant blocks of eight pixels, inside which the nearest neighbour is unambiguous."""
    generator = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 16, (count, 1, height // 8, width // 8), generator=generator) * 16
    return blocks.repeat_interleave(8, 2).repeat_interleave(8, 3).to(torch.uint8)


@pytest.mark.parametrize(
    "view",
    [
        View(),
        View(flip=0.5),
        View(crop="center", size=(16, 24)),
        View(crop="random", size=(16, 32), flip=0.5),
        View(crop="random", size=24, pad=4, flip=0.5),
    ],
)
def test_label_map_is_transformed_like_its_image(view: View) -> None:
    images = block_images()
    aug_params = sample_params_for(view, images)
    augmented = apply_view(images, view, aug_params)
    labels = apply_view_to_labels(labels_like(images), view, aug_params)
    assert labels.dtype == torch.int8
    assert torch.equal(labels, ((augmented[:, 0] * 255).round() // 16).to(torch.int8))
    assert labels.shape[1:] == view.output_size(24, 40)


@pytest.mark.parametrize("size", [(12, 20), (48, 80), (17, 31)])
def test_resized_label_map_equals_torchvisions_nearest(size: tuple[int, int]) -> None:
    images = block_images()
    view = View(crop="random_resized", size=size, scale=(0.3, 1.0), flip=0.5)
    aug_params, maps = sample_params_for(view, images), labels_like(images)
    labels = apply_view_to_labels(maps, view, aug_params)
    for one, map_, row in zip(labels, maps, aug_params, strict=True):
        top, left, height, width = row[:4].int().tolist()
        reference = TF.resized_crop(
            map_[None], top, left, height, width, list(size), interpolation=T.InterpolationMode.NEAREST_EXACT
        )[0]
        assert torch.equal(one, reference.flip(-1) if row[FLIP_COLUMN] else reference)
