"""Segmentation metrics against plain NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ducats.data.domain import UNLABELLED, VOID, Domain, Images
from ducats.data.streets import streets
from ducats.evaluation import evaluate
from ducats.evaluation.evaluate import evaluate_segmentation
from ducats.evaluation.metrics import Tally, compute_metrics
from ducats.models import EvidentialModel, small_fcn
from ducats.settings import View
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.utils.errors import UserError
from ducats.utils.randomness import global_seed

CLASSES = ("road", "kerb", "sky", "moon")  # no pixel is ever a moon
SIZES = [(20, 36), (16, 32), (33, 20), (20, 36), (7, 64)]


class SizedMaps:
    """Label maps with original sizes that differ from the stored size."""

    ndim, dtype = 3, torch.int8

    def __init__(self, originals: list[Tensor], size: tuple[int, int]) -> None:
        self._originals = originals
        resized = [
            Image.fromarray(one.numpy().view(np.uint8)).resize(size[::-1], Image.Resampling.NEAREST)
            for one in originals
        ]
        self._stored = torch.stack([torch.from_numpy(np.array(one).view(np.int8)) for one in resized])
        self.shape = self._stored.shape

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: Any) -> Tensor:
        return self._stored[index]

    def original(self, index: int) -> Tensor:
        return self._originals[index]


def make_test_set() -> Domain:
    pixels = streets(n_source=1, n_pool=5, n_test=0, height=16, width=32).pool.pixels
    generator = torch.Generator().manual_seed(1)
    originals = [torch.randint(VOID, 3, size, generator=generator).to(torch.int8) for size in SIZES]
    images = Images(tuple("abcde"), pixels, original_sizes=torch.tensor(SIZES))
    return Domain(images, SizedMaps(originals, (16, 32)), CLASSES)


def model() -> EvidentialModel:
    with global_seed(0, "model"):
        made = EvidentialModel(small_fcn(classes=4, channels=3, width=8), "exp_at_most_10")
    for parameter in made.network.head.parameters():  # type: ignore[union-attr]
        parameter.data *= 20
    return made.eval()


def evaluate_test_set(batch_size: int = 2, **kwargs: Any) -> Tally:
    fabric = make_fabric("cpu")
    predictor = Predictor(
        model=fabric.setup(kwargs.pop("model", model())), view=View(), batch_size=batch_size, fabric=fabric
    )
    return evaluate_segmentation(predictor, make_test_set(), **kwargs)


def probabilities(image: int, size: tuple[int, int], flip: bool) -> Any:
    """Compute the probabilities in float64, the direct way."""

    def of(pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            logits = model().network(pixels[None])[0].double()
        fine = F.interpolate(logits, size, mode="bilinear", align_corners=True).clamp(max=10)[0]
        return fine.softmax(0)  # the expected probabilities of alpha = exp z

    pixels = make_test_set().images.pixels[image].float() / 255
    found = of(pixels)
    return ((found + of(pixels.flip(-1)).flip(-1)) / 2 if flip else found).numpy()


def reference(resolution: str, flip: bool, out: list[Any] | None = None) -> tuple[Any, float, float]:
    """Return the confusion matrix, the summed negative log-likelihood, and mIoU."""
    counts, nll, test = np.zeros((4, 4), int), 0.0, make_test_set()
    for image in range(5):
        labels = (test.labels.original(image) if resolution == "original" else test.labels[image]).numpy()  # type: ignore[union-attr]
        probability = probabilities(image, labels.shape, flip)
        counted = labels >= 0
        if out is not None:
            counted &= ~out[image]
        np.add.at(counts, (labels[counted], probability.argmax(0)[counted]), 1)
        nll -= np.log(np.take_along_axis(probability, labels.clip(0)[None], 0)[0][counted]).sum()
    shared = np.diag(counts)
    either = counts.sum(0) + counts.sum(1) - shared
    return counts, nll, float((shared[either > 0] / either[either > 0]).mean())


@pytest.mark.parametrize("resolution", ["network", "original"])
@pytest.mark.parametrize("flip", [False, True])
def test_segmentation_metrics_match_reference(resolution: Any, flip: bool) -> None:
    tally = evaluate_test_set(2 if flip else 5, resolution=resolution, average_flipped=flip)
    counts, nll, iou = reference(resolution, flip)
    assert tally.confusion.tolist() == counts.tolist()
    metrics = compute_metrics(tally)
    assert metrics["mean_iou"] == pytest.approx(iou)
    assert metrics["nll"] * tally.total == pytest.approx(nll, rel=1e-5)
    assert tally.total == counts.sum() < sum(height * width for height, width in SIZES)


@pytest.mark.parametrize("resolution", ["network", "original"])
@pytest.mark.parametrize("labelled_at", ["network", "original"])
def test_labelled_pixels_are_ignored(resolution: Any, labelled_at: str) -> None:
    """On another grid, a pixel is ignored if the labels, resized to the nearest, are known there."""
    generator = torch.Generator().manual_seed(2)
    label_sizes, sizes = ([(16, 32)] * 5 if at == "network" else SIZES for at in (labelled_at, resolution))
    known_labels = [torch.full(size, UNLABELLED, dtype=torch.int8) for size in label_sizes]
    for one in known_labels:
        one[torch.rand(one.shape, generator=generator) < 0.3] = 1
        one[torch.rand(one.shape, generator=generator) < 0.1] = VOID  # also labelled, or known in advance
    known = [
        np.array(Image.fromarray(one.numpy() != UNLABELLED).resize(size[::-1], Image.Resampling.NEAREST))
        for one, size in zip(known_labels, sizes, strict=True)
    ]
    tally = evaluate_test_set(resolution=resolution, known_labels_of=lambda image: known_labels[image])
    counts, nll, _ = reference(resolution, False, known)
    assert tally.confusion.tolist() == counts.tolist()
    assert float(tally.nll_sum) == pytest.approx(nll, rel=1e-5)


def test_fully_labelled_images_count_nothing() -> None:
    nothing = evaluate_test_set(
        resolution="network", known_labels_of=lambda _: torch.zeros(16, 32, dtype=torch.int8)
    )
    assert nothing.total == 0


def test_nan_logits_raise() -> None:
    broken = model()
    broken.network.head.bias.data.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(UserError, match="no longer finite"):
        evaluate_test_set(model=broken)


def test_labelled_pixels_use_the_resize_rule_of_stored_maps() -> None:
    """At the published sizes, 1024 x 2048 to 640 x 1280, another rule differs in 28 rows and 133 columns."""
    whole = np.arange(1024 * 2048, dtype=np.int32).reshape(1024, 2048)
    stored = np.array(Image.fromarray(whole).resize((1280, 640), Image.Resampling.NEAREST))
    known_labels = torch.full((1024 * 2048,), UNLABELLED, dtype=torch.int8)
    known_labels[torch.from_numpy(stored.flatten().astype(np.int64))] = 0
    labels = torch.zeros(1, 640, 1280, dtype=torch.int8)
    images = Images(("one",), torch.zeros(1, 3, 640, 1280, dtype=torch.uint8))
    test = Domain(images, labels, ("a", "b"))
    left = evaluate._counted_labels(test, 0, "network", lambda _: known_labels.view(1024, 2048))
    assert bool((left == UNLABELLED).all())
