"""Evaluation split: held-out images, or the target itself with or without its labelled images.

Published results on Office-Home and VisDA include the target images labelled during the run; those on
miniDomainNet do not. The split is therefore a setting, and is recorded with each result.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ducats.data.domain import AdaptationData, Domain, Images, Labels, subset_images, subset_labels
from ducats.settings import TestSplit
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator

EvaluatedOn = Literal["held_out", "unlabelled", "target"]
TestSetOrigin = Literal["own", "split", "target"]  # the data's test set; part of the target; the whole target


def resolve_split(
    split: TestSplit, *, has_test: bool, has_ground_truth: bool, target_is_test: bool
) -> tuple[EvaluatedOn, TestSetOrigin]:
    """Resolve the setting for given data: the images to evaluate on, and the origin of the test set.

    Args:
        target_is_test: Whether the user gave the target as the test set.
    """
    if target_is_test:
        if split == "held_out":
            return "held_out", "split"
        return ("unlabelled" if split == "unlabelled" else "target"), "target"
    if has_test and split in ("auto", "published", "held_out"):
        return "held_out", "own"
    if split == "auto" and not has_ground_truth:
        return "held_out", "own"  # there may be no test set
    if not has_ground_truth:
        raise UserError(
            f"evaluation.split={split} needs the target's labels, but this data has none; give "
            "--ground-truth if the target's folders are its classes, or drop the setting and give labelled "
            "target images with --test"
        )
    if split == "held_out":
        return "held_out", "split"
    return ("target" if split in ("target", "published") else "unlabelled"), "target"


def attach_test_set(
    data: AdaptationData, split: TestSplit, test_fraction: float
) -> tuple[AdaptationData, EvaluatedOn]:
    """Attach the test set that the setting asks for; return the data and the kind of test set.

    Args:
        test_fraction: Fraction of each class to hold out if the test set is split from the target.
    """
    test, ground_truth = data.test, data.ground_truth
    target_is_test = test is not None and same_images(test.images, data.pool)
    evaluated_on, origin = resolve_split(
        split,
        has_test=test is not None,
        has_ground_truth=ground_truth is not None,
        target_is_test=target_is_test,
    )
    if origin == "own":
        return data, evaluated_on
    labels = test.labels if target_is_test and test is not None else ground_truth
    assert labels is not None
    if origin == "split":
        return _split_target(data, labels, test_fraction), evaluated_on
    return replace(data, test=Domain(data.pool, labels, data.all_classes)), evaluated_on


def same_images(one: Images, two: Images) -> bool:
    """Return whether two sets are the same files, possibly through different paths."""
    if one is two:
        return True
    if not one.files or not two.files:
        return False
    # If the keys agree, one common file shows that the folders are the same.
    return one.files == two.files or (
        one.keys == two.keys and one.files[0].exists() and one.files[0].samefile(two.files[0])
    )


def n_held_out(class_size: int, fraction: float) -> int:
    """Return the number of images of a class to hold out.

    >>> n_held_out(10, 0.25), n_held_out(2, 0.2)
    (2, 0)
    """
    return round(fraction * class_size)


def hold_out_source(data: AdaptationData, fraction: float) -> tuple[AdaptationData, Domain | None]:
    """Split a fraction of each class off the source; return the data and that set (None for 0).

    The split does not depend on the run's seed, which keeps results comparable.
    """
    if not fraction:
        return data, None
    source = data.source
    held_out_index, kept_index = _stratified_split(source.labels, fraction, "held out source")
    if not len(held_out_index) or not len(kept_index):
        raise UserError(
            f"evaluation.source_holdout_fraction={fraction} of {len(source)} source images leaves nothing to "
            "train on or to validate with; choose another fraction, or 0 to hold out none"
        )
    remaining, held_out = (
        Domain(images, subset_labels(source.labels, index), source.classes)
        for images, index in (
            (_remaining_images(source.images, kept_index), kept_index),
            (subset_images(source.images, held_out_index), held_out_index),
        )
    )
    return replace(data, source=remaining), held_out


def _split_target(data: AdaptationData, labels: Labels, test_fraction: float) -> AdaptationData:
    """Hold out a fraction of each target class, independently of the run's seed."""
    held_out_index, kept_index = _stratified_split(labels, test_fraction, "held out")
    if not len(held_out_index) or not len(kept_index):
        raise UserError(
            f"evaluation.test_fraction={test_fraction} of {len(labels)} target images leaves nothing to "
            "label or to evaluate on; use evaluation.split=unlabelled"
        )
    return AdaptationData(
        source=data.source,
        pool=_remaining_images(data.pool, kept_index),
        ground_truth=None if data.ground_truth is None else subset_labels(data.ground_truth, kept_index),
        test=Domain(
            subset_images(data.pool, held_out_index),
            subset_labels(labels, held_out_index),
            data.all_classes,
        ),
        target_only_classes=data.target_only_classes,
    )


def _remaining_images(images: Images, index: Tensor) -> Images:
    """Return the images that are not held out; they list the skipped files, which may belong to either."""
    return replace(subset_images(images, index), unreadable=images.unreadable)


def _stratified_split(labels: Labels, fraction: float, stream: str) -> tuple[Tensor, Tensor]:
    """Return the indices of a fraction of each class, and the others; ``stream`` names the random stream.

    With label maps, an image has many classes; a fraction of all images is taken instead.
    """
    uniforms = torch.rand(len(labels), generator=make_generator(0, stream))
    is_held_out = torch.zeros(len(labels), dtype=torch.bool)
    classes = torch.zeros(len(labels)) if labels.ndim == 3 else labels[:]
    for label in classes[classes >= 0].unique().tolist():
        members = (classes == label).nonzero().squeeze(1)
        is_held_out[members[uniforms[members].argsort()[: n_held_out(len(members), fraction)]]] = True
    return is_held_out.nonzero().squeeze(1), (~is_held_out).nonzero().squeeze(1)
