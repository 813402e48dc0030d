"""Objective of RIPU: both regularisers against plain loops over pixels, values and gradients."""

import pytest
import torch
from tiny_maps import (
    PARTLY_LABELLED_TARGET,
    SIZE,
    TARGET,
    TinySegmenter,
    assert_losses,
    dense_probability,
    gradients,
    random_images,
)
from torch import Tensor

from ducats.data.domain import VOID
from ducats.objectives import Batch, LabelledImages, reduction, softmax
from ducats.objectives.ripu import ripu

HEIGHT, WIDTH = SIZE


def source_labels() -> Tensor:
    """Label maps with areas of several classes, void pixels, and boundaries at and away from the border."""
    labels = torch.zeros(2, *SIZE, dtype=torch.int8)
    labels[0, :, 9:] = 1
    labels[0, 7:, :5] = 2
    labels[0, 3:5, 3:6] = VOID
    labels[1] = 3
    labels[1, 5, 6] = 0
    labels[1, 0, :4] = VOID
    return labels


def batch(*, labelled: bool) -> Batch:
    target = PARTLY_LABELLED_TARGET if labelled else TARGET
    source = LabelledImages(random_images(0), source_labels())
    return Batch(source, None, None, target, has_target_labels=labelled)


def consistency_by_loops(probability: Tensor, labels: Tensor) -> Tensor:
    """Mean l1 distance to the mean of the 3 x 3 neighbourhood, over labelled pixels on a boundary.

    A pixel is on a boundary if 8 times its label differs from the sum of its neighbours' (255: void; 0:
    outside the image). Pixels outside the image have the probabilities of the nearest pixel inside.
    """
    distances = list[Tensor]()
    for n in range(len(labels)):
        codes = [[255 if label < 0 else label for label in row] for row in labels[n].tolist()]
        for y in range(HEIGHT):
            for x in range(WIDTH):
                near = [(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
                inside = [(i, j) for i, j in near if 0 <= i < HEIGHT and 0 <= j < WIDTH and (i, j) != (y, x)]
                if labels[n, y, x] < 0 or 8 * codes[y][x] == sum(codes[i][j] for i, j in inside):
                    continue
                clamped = [(min(max(i, 0), HEIGHT - 1), min(max(j, 0), WIDTH - 1)) for i, j in near]
                mean = torch.stack([probability[n, :, i, j] for i, j in clamped]).mean(0)
                distances.append((probability[n, :, y, x] - mean).abs().sum())
    assert 20 < len(distances) < labels.numel() / 2
    return torch.stack(distances).mean()


def negative_by_loops(probability: Tensor, threshold: float) -> Tensor:
    """Mean of ``-log(1 - p)`` over all probabilities below the threshold, at all pixels."""
    terms = [-torch.log(1 - p + 1e-6) for p in probability.flatten() if p < threshold]
    assert len(terms) < probability.numel()
    return torch.stack(terms).mean()


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("chunk_elements", [1, 4 * 16 * 5, 10**6])  # one row, five rows, everything
def test_terms_match_plain_loops(
    labelled: bool, chunk_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduction, "CPU_CHUNK_ELEMENTS", chunk_elements)
    model, data = TinySegmenter(), batch(labelled=labelled)
    assert data.target is not None
    losses = ripu(model, data, consistency=0.3, negative=0.7, threshold=0.1, source=0.5, target=0.4)
    source_probability = dense_probability(model(data.source.images).z)
    expected = {
        **softmax(model, data, source=0.5, target=0.4),
        "source/consistency": 0.3 * consistency_by_loops(source_probability, data.source.labels),
        "target/negative": 0.7 * negative_by_loops(dense_probability(model(data.target.images).z), 0.1),
    }
    assert losses.keys() == expected.keys()
    assert ("labelled/nll" in losses) == labelled
    assert_losses(losses, expected)
    for name, loss in expected.items():
        torch.testing.assert_close(gradients(losses[name], model), gradients(loss, model))


def test_published_weights_and_terms_without_any_pixel() -> None:
    model, data = TinySegmenter(), batch(labelled=False)
    published = ripu(model, data)
    explicit = ripu(model, data, consistency=0.1, negative=1.0, threshold=0.05)
    assert_losses(published, explicit)
    assert ripu(model, data, consistency=0, negative=0).keys() == {"source/nll"}
    plain = LabelledImages(data.source.images, torch.zeros(2, *SIZE, dtype=torch.int8))  # no boundary
    losses = ripu(model, Batch(plain, None, None, data.target), threshold=1e-9)
    assert losses["source/consistency"] == losses["target/negative"] == 0
    for name in ("source/consistency", "target/negative"):
        assert all(gradient.isfinite().all() for gradient in gradients(losses[name], model))
