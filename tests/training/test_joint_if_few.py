"""Labelled images join the unlabelled batch while they are few."""

from dataclasses import replace

import torch

from ducats.objectives import Batch, LabelledImages
from ducats.training.step import TARGET_BATCHING


def batch(n_labelled: int, n_pseudo_labelled: int | None = None) -> Batch:
    def some(count: int) -> LabelledImages:
        return LabelledImages(torch.zeros(count, 1, 2, 2), torch.zeros(count, dtype=torch.long))

    return Batch(
        source=some(8),
        labelled=some(n_labelled),
        unlabelled=torch.zeros(8, 1, 2, 2),
        pseudo_labelled=None if n_pseudo_labelled is None else some(n_pseudo_labelled),
    )


def sizes(given: Batch) -> list[int]:
    return [len(images) for images in TARGET_BATCHING["joint_if_few"](given)]


def test_less_than_half_a_batch_is_joined() -> None:
    assert sizes(batch(3)) == [8, 3]


def test_half_a_batch_is_separate() -> None:
    assert sizes(batch(4)) == []


def test_one_small_labelled_batch_is_enough() -> None:
    assert sizes(batch(8, n_pseudo_labelled=1)) == [8, 8, 1]


def test_without_labelled_images_nothing_is_joined() -> None:
    given = replace(batch(1), labelled=None)
    assert sizes(given) == []
