"""DUC and softmax against their definitions, on images and on pixels; contracts of all objectives."""

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import tiny_network
import torch
import torch.nn.functional as F
from tiny_network import TinyNetwork, flatten_maps, losses_of
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from ducats import dirichlet
from ducats.data.domain import UNLABELLED, VOID
from ducats.models.output import Output
from ducats.objectives import Batch, LabelledImages, duc, softmax
from ducats.utils.errors import UserError

CLASSES, SIZE = 4, (6, 7)


class Recorder:
    """A "model" that returns the images as logits and records how many were forwarded."""

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def __call__(self, images: Tensor) -> Output:
        self.batch_sizes.append(len(images))
        if images.ndim == 2:
            return Output(images, None)
        return Output(images, None, SIZE, dirichlet.EVIDENCE_FUNCTIONS["exp_at_most_10"])


def labelled(count: int, *, pixels: bool, kind: str = "labelled") -> LabelledImages:
    generator = torch.Generator().manual_seed(count)
    grid, size = ((3, 4), SIZE) if pixels else ((), ())
    logits = 4 * torch.randn(count, CLASSES, *grid, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (count, *size), generator=generator)
    if kind == "mixed":
        random = torch.rand(labels.shape, generator=generator)
        labels[random < 0.4] = UNLABELLED
        labels[random > 0.8] = VOID
    elif kind != "labelled":
        labels[:] = {"unlabelled": UNLABELLED, "void": VOID}[kind]
    return LabelledImages(logits, labels)


def make_batch(*, pixels: bool, kind: str = "mixed") -> Batch:
    source = labelled(6, pixels=pixels)
    target = labelled(5, pixels=pixels, kind=kind)
    if pixels:
        return Batch(source, None, None, target)
    return Batch(source, target, labelled(7, pixels=False).images)


def rows(images: Tensor) -> Tensor:
    """Log alpha ``(R, C)`` of every image or pixel."""
    if images.ndim == 2:
        return images
    return flatten_maps(F.interpolate(images, SIZE, mode="bilinear", align_corners=True).clamp(max=10))


def mean(values: Tensor) -> Tensor:
    return values.sum() / max(1, len(values))


def labelled_reference(stream: str, data: LabelledImages) -> dict[str, Tensor]:
    """Unweighted losses on labelled positions, with the distributions of torch."""
    z, is_labelled, labels = rows(data.images), data.labels.flatten() >= 0, data.labels.flatten().clamp(min=0)
    alpha = z.exp().scatter(1, labels[:, None], 1.0)
    kl = kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones_like(alpha))) / CLASSES
    nll = F.cross_entropy(z, labels, reduction="none")
    return {f"{stream}/nll": mean(nll[is_labelled]), f"{stream}/kl": mean(kl[is_labelled])}


def unlabelled_reference(z: Tensor) -> dict[str, Tensor]:
    alpha = z.exp()
    total = alpha.sum(1, keepdim=True)
    p = alpha / total
    data = (p * (torch.digamma(total + 1) - torch.digamma(alpha + 1))).sum(1)
    return {"unlabelled/u_dis": mean(-(p * p.log()).sum(1) - data), "unlabelled/u_data": mean(data)}


@pytest.mark.parametrize(
    ("pixels", "kind", "void"),
    [
        *((False, kind, "ignored") for kind in ("mixed", "labelled", "void")),
        *(
            (True, kind, void)
            for kind in ("mixed", "labelled", "unlabelled", "void")
            for void in ("ignored", "unlabelled")
        ),
    ],
)
def test_duc_is_the_papers_sum(pixels: bool, kind: str, void: Literal["ignored", "unlabelled"]) -> None:
    batch = make_batch(pixels=pixels, kind=kind)
    target = batch.target or batch.labelled
    assert target is not None
    is_open = (target.labels < 0 if void == "unlabelled" else target.labels == UNLABELLED).flatten()
    unlabelled = rows(target.images)[is_open] if batch.unlabelled is None else batch.unlabelled
    reference = {
        **labelled_reference("source", batch.source),
        **labelled_reference("labelled", target),
        **unlabelled_reference(unlabelled),
    }
    streams, terms = {"source": 1.3, "labelled": 0.6, "unlabelled": 1.0}, {"u_dis": 0.7, "u_data": 0.3}
    weights = {**streams, **terms, "nll": 0.9, "kl": 1.1}
    expected = {
        name: math.prod(weights[part] for part in name.split("/")) * value
        for name, value in reference.items()
    }
    found = duc(Recorder(), batch, source=1.3, target=0.6, beta=0.7, lambda_=0.3, nll=0.9, kl=1.1, void=void)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    model = Recorder()
    found = softmax(model, batch, source=1.3, target=0.6)
    nll = {"source/nll": 1.3 * reference["source/nll"], "labelled/nll": 0.6 * reference["labelled/nll"]}
    torch.testing.assert_close(found, nll)
    assert model.batch_sizes == [6, 5]


@pytest.mark.parametrize(
    ("params", "gone", "image_sizes", "map_sizes"),
    [
        ({}, "", [6, 7, 5], [6, 5]),  # source, unlabelled, labelled: the published order
        ({"beta": 0.0}, "u_dis", [6, 7, 5], [6, 5]),
        ({"lambda_": 0.0}, "u_data", [6, 7, 5], [6, 5]),
        ({"beta": 0.0, "lambda_": 0.0}, "unlabelled", [6, 5], [6, 5]),
        ({"kl": 0.0}, "kl", [6, 7, 5], [6, 5]),
        ({"nll": 0.0}, "nll", [6, 7, 5], [6, 5]),
        ({"source": 0.0}, "source", [7, 5], [5]),
        ({"target": 0.0}, "labelled", [6, 7], [6, 5]),
        ({"target": 0.0, "beta": 0.0, "lambda_": 0.0}, "labelled unlabelled", [6], [6]),
    ],
)
@pytest.mark.parametrize("pixels", [False, True])
def test_terms_can_be_disabled_and_streams_are_forwarded_only_if_needed(
    params: dict[str, Any], gone: str, image_sizes: list[int], map_sizes: list[int], pixels: bool
) -> None:
    model, batch = Recorder(), make_batch(pixels=pixels)
    full = duc(Recorder(), batch)
    expected = {name: loss for name, loss in full.items() if not set(name.split("/")) & set(gone.split())}
    torch.testing.assert_close(duc(model, batch, **params), expected)
    assert model.batch_sizes == (map_sizes if pixels else image_sizes)


def test_default_weight_of_u_data_is_smaller_for_pixels() -> None:
    for pixels, weight in ((False, 0.05), (True, 0.01)):
        batch = make_batch(pixels=pixels)
        default, plain = (duc(Recorder(), batch, lambda_=value) for value in (None, 1.0))
        torch.testing.assert_close(default["unlabelled/u_data"], weight * plain["unlabelled/u_data"])


def test_before_the_first_round_and_after_the_last() -> None:
    batch = make_batch(pixels=False)
    source, unlabelled = {"source/nll", "source/kl"}, {"unlabelled/u_dis", "unlabelled/u_data"}
    assert duc(Recorder(), replace(batch, labelled=None)).keys() == source | unlabelled
    after = duc(Recorder(), replace(batch, unlabelled=None))
    assert after.keys() == source | {"labelled/nll", "labelled/kl"}
    maps, model = replace(make_batch(pixels=True), has_target_labels=False), Recorder()
    assert softmax(model, maps).keys() == {"source/nll"}
    assert duc(model, maps, beta=0.0, lambda_=0.0).keys() == source
    assert model.batch_sizes == [6, 6]  # the target is not needed
    assert duc(model, maps).keys() == source | unlabelled


def test_whole_labelled_images_and_unlabelled_maps() -> None:
    whole = labelled(4, pixels=True)
    batch = replace(make_batch(pixels=True, kind="unlabelled"), labelled=whole)
    for objective in (duc, softmax):
        model = Recorder()
        losses = objective(model, batch)
        assert sorted(model.batch_sizes) == [4, 5, 6]
        torch.testing.assert_close(
            losses["labelled/nll"], labelled_reference("labelled", whole)["labelled/nll"]
        )


# ---- contracts


@pytest.mark.parametrize(
    ("name", "params"),
    [
        *((name, {}) for name in ("duc", "softmax", "mme", "eada", "sdm")),
        ("euq", {"certainty_rate": 0.0}),
    ],
)
def test_pixels_count_as_samples(name: str, params: dict[str, float]) -> None:
    """Losses on maps are those on an image for each pixel."""
    maps = tiny_network.map_batch()
    assert maps.target is not None
    source, target = (
        LabelledImages(flatten_maps(part.images), part.labels.flatten().long())
        for part in (maps.source, maps.target)
    )
    is_labelled = target.labels >= 0
    labelled_pixels = LabelledImages(target.images[is_labelled], target.labels[is_labelled])
    pixels = Batch(source, labelled_pixels, target.images[target.labels == UNLABELLED])
    if name == "duc":
        params = {"lambda_": 0.2}  # its default depends on the task
    expected = losses_of(name, TinyNetwork(), pixels, **params)
    found = losses_of(name, TinyNetwork(pixels=True), maps, **params)
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("duc", {"void": "dropped"}),
        ("euq", {"uncertainty": "both"}),
        ("euq", {"certainty_rate": -1.0}),
        ("euq", {"propagation_rate": -0.1}),
        ("duc", {"propagation_rate": 1.1}),
        ("duc", {"propagation_max": 1.1}),
        ("softmax", {"propagation_neighbours": 0}),
        ("softmax", {"propagation_neighbours": 2.5}),
        ("softmax", {"propagation_alpha": 1.0}),
        ("softmax", {"propagation_alpha": 0.0}),
        ("softmax", {"propagation_prior": -0.1}),
        ("mme", {"temperature": 0.0}),
        ("mrkld", {"warmup": 1.0}),
        ("mrkld", {"rounds": 0}),
        ("mrkld", {"portion": 0.0}),
        ("mrkld", {"max_portion": 1.5}),
        ("tpld", {"easy_fraction": 0.0}),
        ("tpld", {"radius": -1}),
        ("tpld", {"beta": 1.1}),
        ("proda", {"distillation_start": 0.3}),  # the end of the warm-up
        ("proda", {"tau": 0.0}),
        ("mada", {"n_anchors": 0}),
        ("ripu", {"threshold": 0.0}),
    ],
)
def test_invalid_params_raise(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(params))):
        losses_of(name, TinyNetwork(pixels=True), tiny_network.map_batch(), **params)


@pytest.mark.parametrize(
    ("name", "params", "pixels", "message"),
    [
        *(
            (name, {}, False, "for segmentation")
            for name in ("mada", "proda", "ripu", "seg_uncertainty", "tpld")
        ),
        ("tqs", {}, True, "whole images only"),
        ("euq", {}, True, r"objective\.params\.certainty_rate=0"),
        *(
            (name, {"propagation_rate": 0.1}, True, r"objective\.params\.propagation_rate=0")
            for name in ("duc", "euq", "softmax")
        ),
        ("euq", {"propagation_rate": 0.1, "certainty_rate": 0.1}, False, "both label the pool"),
        ("duc", {"fixmatch": 1.0}, True, "whole images only"),
        ("duc", {"fixmatch": 1.0}, False, "strong view"),
    ],
)
def test_unsupported_tasks_raise(name: str, params: dict[str, Any], pixels: bool, message: str) -> None:
    batch = tiny_network.map_batch() if pixels else tiny_network.image_batch()
    with pytest.raises(UserError, match=message):
        losses_of(name, TinyNetwork(pixels), batch, **params)
