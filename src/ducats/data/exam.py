"""On which images a model is measured: held-out ones, or the target itself, with or without what was bought.

Published numbers on Office-Home and VisDA include the images whose labels were bought; on miniDomainNet they
do not. So it is a setting, and a result says which.
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
Made = Literal["own", "split", "target"]  # the data's test set; a share of the target; the target itself


class Chosen:
    """Some of a set's pixels or maps, by index: nothing is copied, in memory or from a file."""

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
        """A map in the size that it had before it was stored."""
        return original_map(self._held, int(self._index[index]))


def decide(images: Wanted, *, test: bool, truth: bool, target_is_test: bool) -> tuple[MeasuredOn, Made]:
    """What a setting comes to with some data: what is measured on, and how that set is made.

    Args:
        images: see ``config.Evaluation``.
        test: whether the data has a test set.
        truth: whether the target's labels are known to an oracle.
        target_is_test: whether that test set is the target itself, by the user's will.
    """
    if target_is_test:
        if images == "held_out":
            return "held_out", "split"
        return ("unlabelled" if images == "unlabelled" else "target"), "target"
    if test and images in ("auto", "published", "held_out"):
        return "held_out", "own"
    if images == "auto" and not truth:
        return "held_out", "own"  # if there is anything
    if not truth:
        raise UserError(
            f"evaluation.images={images} needs the target's labels, and this data has none: give --truth "
            "if the target's folders are its classes, or leave the setting out and give labelled images of "
            "the target with --test"
        )
    if images == "held_out":
        return "held_out", "split"
    return ("target" if images in ("target", "published") else "unlabelled"), "target"


def examine(shift: Shift, images: Wanted, share: float) -> tuple[Shift, MeasuredOn]:
    """The problem with the test set that a setting asks for, and what that set is.

    Args:
        shift: as the data set gave it.
        images: see ``config.Evaluation``.
        share: of each class that is held out where the data has no test set of its own.
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
    """Whether two sets are the same files, whatever path led there."""
    if one is two:
        return True
    if not one.files or not two.files:
        return False
    # Where the keys agree, the folders are the same if one file is.
    return one.files == two.files or (
        one.keys == two.keys and one.files[0].exists() and one.files[0].samefile(two.files[0])
    )


def held_out_of(members: int, share: float) -> int:
    """How many of a class are held out.

    >>> held_out_of(10, 0.25), held_out_of(2, 0.2)
    (2, 0)
    """
    return round(share * members)


def hold_out_source(shift: Shift, share: float) -> tuple[Shift, Domain | None]:
    """The problem with a smaller source, and what its source lost; None for a share of 0.

    The same images for every seed of a run, so that results compare.

    Args:
        shift: as the data set gave it.
        share: of each source class that is held out.
    """
    if not share:
        return shift, None
    source = shift.source
    inside, outside = _share_of_each(source.labels, share, "held out source")
    if not len(inside) or not len(outside):
        raise UserError(
            f"evaluation.source_share={share} of {len(source)} source images leaves nothing to train on or "
            "to validate with: choose another share, or 0 for none"
        )
    kept, held = (
        Domain(_some(source.images, index), _some_labels(source.labels, index), source.classes)
        for index in (outside, inside)
    )
    return replace(shift, source=kept), held


def _split(shift: Shift, labels: Labels, share: float) -> Shift:
    """Hold a share of each class of the target out; the same share for every seed of a run."""
    inside, outside = _share_of_each(labels, share, "held out")
    if not len(inside) or not len(outside):
        raise UserError(
            f"evaluation.share={share} of {len(labels)} target images leaves nothing to ask or to measure: "
            "use evaluation.images=unlabelled"
        )
    return Shift(
        source=shift.source,
        pool=_some(shift.pool, outside),
        truth=None if shift.truth is None else _some_labels(shift.truth, outside),
        test=Domain(_some(shift.pool, inside), _some_labels(labels, inside), tuple(shift.classes)),
    )


def _share_of_each(labels: Labels, share: float, use: str) -> tuple[Tensor, Tensor]:
    """Indices of a share of each class, and of the rest; they depend on the name of the use alone.

    Images with label maps show many classes each: of them, a share of all is taken.
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
