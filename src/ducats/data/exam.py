"""Evaluation split: held-out images, or the target itself with or without its labelled images.

Published results on Office-Home and VisDA include the target images labelled during the run; those on
miniDomainNet do not. The split is therefore a setting, and is recorded with each result.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ducats.domain import Domain, Held, Images, Labels, Shift, original_map
from ducats.errors import UserError
from ducats.randomness import fork

MeasuredOn = Literal["held_out", "unlabelled", "target"]
Wanted = Literal["auto", "held_out", "unlabelled", "target", "published"]
Made = Literal["own", "split", "target"]  # the data's test set; part of the target; the whole target


class Chosen:
    """Subset of pixels or label maps by index, without copying."""

    def __init__(self, held: Held, index: Tensor) -> None:
        self._held, self._index = held, index
        self.shape = torch.Size((len(index), *held.shape[1:]))
        self.dtype, self.ndim = held.dtype, held.ndim

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        found: Tensor = self._held[self._index[index]]
        return found

    def original(self, index: int) -> Tensor:
        """Return a label map at its original size."""
        return original_map(self._held, int(self._index[index]))


def decide(images: Wanted, *, test: bool, truth: bool, target_is_test: bool) -> tuple[MeasuredOn, Made]:
    """Resolve the setting for given data: the images to evaluate on, and the origin of the test set.

    Args:
        images: See ``config.Evaluation``.
        test: Whether the data has a test set.
        truth: Whether the target's ground truth is known.
        target_is_test: Whether the user gave the target as the test set.
    """
    if target_is_test:
        if images == "held_out":
            return "held_out", "split"
        return ("unlabelled" if images == "unlabelled" else "target"), "target"
    if test and images in ("auto", "published", "held_out"):
        return "held_out", "own"
    if images == "auto" and not truth:
        return "held_out", "own"  # there may be no test set
    if not truth:
        raise UserError(
            f"evaluation.split={images} needs the target's labels, but this data has none; give --ground-truth if "
            "the target's folders are its classes, or drop the setting and give labelled target images with "
            "--test"
        )
    if images == "held_out":
        return "held_out", "split"
    return ("target" if images in ("target", "published") else "unlabelled"), "target"


def examine(shift: Shift, images: Wanted, share: float) -> tuple[Shift, MeasuredOn]:
    """Attach the test set that the setting asks for; return the data and the kind of test set.

    Args:
        shift: Data as returned by the data set.
        images: See ``config.Evaluation``.
        share: Fraction of each class to hold out if the test set is split from the target.
    """
    test, truth = shift.test, shift.truth
    same = test is not None and same_images(test.images, shift.pool)
    on, made = decide(images, test=test is not None, truth=truth is not None, target_is_test=same)
    if made == "own":
        return shift, on
    labels = test.labels if same and test is not None else truth
    assert labels is not None
    if made == "split":
        return _split(shift, labels, share), on
    return replace(shift, test=Domain(shift.pool, labels, tuple(shift.classes))), on


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


def held_out_of(members: int, share: float) -> int:
    """Return the number of images of a class to hold out.

    >>> held_out_of(10, 0.25), held_out_of(2, 0.2)
    (2, 0)
    """
    return round(share * members)


def hold_out_source(shift: Shift, share: float) -> tuple[Shift, Domain | None]:
    """Split a validation set off the source; return the data and that set (None for a share of 0).

    The split does not depend on the run's seed, which keeps results comparable.

    Args:
        shift: Data as returned by the data set.
        share: Fraction of each source class to hold out.
    """
    if not share:
        return shift, None
    source = shift.source
    inside, outside = _share_of_each(source.labels, share, "held out source")
    if not len(inside) or not len(outside):
        raise UserError(
            f"evaluation.source_holdout_fraction={share} of {len(source)} source images leaves nothing to train on or "
            "to validate with; choose another fraction, or 0 to hold out none"
        )
    kept, held = (
        Domain(_some(source.images, index), _some_labels(source.labels, index), source.classes)
        for index in (outside, inside)
    )
    return replace(shift, source=kept), held


def _split(shift: Shift, labels: Labels, share: float) -> Shift:
    """Hold out a fraction of each target class, independently of the run's seed."""
    inside, outside = _share_of_each(labels, share, "held out")
    if not len(inside) or not len(outside):
        raise UserError(
            f"evaluation.test_fraction={share} of {len(labels)} target images leaves nothing to label or to evaluate "
            "on; use evaluation.split=unlabelled"
        )
    return Shift(
        source=shift.source,
        pool=_some(shift.pool, outside),
        truth=None if shift.truth is None else _some_labels(shift.truth, outside),
        test=Domain(_some(shift.pool, inside), _some_labels(labels, inside), tuple(shift.classes)),
    )


def _share_of_each(labels: Labels, share: float, use: str) -> tuple[Tensor, Tensor]:
    """Return the indices of a fraction of each class, and the others; ``use`` names the random stream.

    With label maps, an image has many classes; a fraction of all images is taken instead.
    """
    luck = torch.rand(len(labels), generator=fork(0, use))
    held = torch.zeros(len(labels), dtype=torch.bool)
    classes = torch.zeros(len(labels)) if labels.ndim == 3 else labels[:]
    for label in classes[classes >= 0].unique().tolist():
        members = (classes == label).nonzero().squeeze(1)
        held[members[luck[members].argsort()[: held_out_of(len(members), share)]]] = True
    return held.nonzero().squeeze(1), (~held).nonzero().squeeze(1)


def _some_labels(labels: Labels, index: Tensor) -> Labels:
    return labels[index] if labels.ndim == 1 else Chosen(labels, index)


def _some(images: Images, index: Tensor) -> Images:
    places = index.tolist()
    return Images(
        tuple(images.keys[place] for place in places),
        Chosen(images.pixels, index),
        None if images.files is None else tuple(images.files[place] for place in places),
        None if images.aspect is None else images.aspect[index],
        None if images.sizes is None else images.sizes[index],
        None if images.void is None else Chosen(images.void, index),
    )
