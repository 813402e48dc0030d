"""On which images a model is measured: held-out ones, or the target itself, with or without what was bought.

Published numbers on Office-Home and VisDA include the images whose labels were bought; on miniDomainNet they
do not. So it is a setting, and every result says which.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ducats.domain import Domain, Images, Pixels, Shift
from ducats.errors import UserError
from ducats.randomness import fork

MeasuredOn = Literal["held_out", "unlabelled", "target"]


class Chosen:
    """Some of a set's pixels, by index: nothing is copied, in memory or from a file."""

    def __init__(self, pixels: Pixels, index: Tensor) -> None:
        self._pixels, self._index = pixels, index
        self.shape = torch.Size((len(index), *pixels.shape[1:]))
        self.dtype, self.ndim = pixels.dtype, pixels.ndim

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        found: Tensor = self._pixels[self._index[index]]
        return found


def examine(
    shift: Shift, images: Literal["auto", "held_out", "unlabelled", "target", "published"], share: float
) -> tuple[Shift, MeasuredOn]:
    """The problem with the test set that a setting asks for, and what that set is.

    Args:
        shift: as the data set gave it.
        images: see ``config.Evaluation``.
        share: of each class that is held out where the data has no test set of its own.
    """
    if shift.test is not None and _same(shift.test.images, shift.pool):
        # The user named the target as its own test set.
        shift = replace(shift, test=replace(shift.test, images=shift.pool))
        if images in ("auto", "target", "published"):
            return shift, "target"
        if images == "unlabelled":
            return shift, "unlabelled"
        shift = replace(shift, test=None)
    if images == "auto" and shift.truth is None:
        return shift, "held_out"  # if there is anything
    if images in ("auto", "published", "held_out") and shift.test is not None:
        return shift, "held_out"
    if shift.truth is None:
        raise UserError(
            f"evaluation.images={images} needs the target's labels, and this data has none: give a folder "
            "of labelled target images with --test, or leave the setting out"
        )
    if images == "held_out":
        return _split(shift, shift.truth, share), "held_out"
    test = Domain(shift.pool, shift.truth, tuple(shift.classes))
    return replace(shift, test=test), "target" if images in ("target", "published") else "unlabelled"


def _same(one: Images, two: Images) -> bool:
    return one is two or (one.files is not None and one.files == two.files)


def _split(shift: Shift, truth: Tensor, share: float) -> Shift:
    """Hold a share of each class out; the same share for every seed of a run, so that results compare."""
    luck = torch.rand(len(truth), generator=fork(0, "held out"))
    held = torch.zeros(len(truth), dtype=torch.bool)
    for label in truth.unique().tolist():
        members = (truth == label).nonzero().squeeze(1)
        held[members[luck[members].argsort()[: round(share * len(members))]]] = True
    if not 0 < int(held.sum()) < len(held):
        raise UserError(
            f"evaluation.share={share} of {len(held)} target images leaves nothing to ask or to measure: "
            "use evaluation.images=unlabelled"
        )
    inside, outside = held.nonzero().squeeze(1), (~held).nonzero().squeeze(1)
    return Shift(
        source=shift.source,
        pool=_some(shift.pool, outside),
        truth=truth[outside],
        test=Domain(_some(shift.pool, inside), truth[inside], tuple(shift.classes)),
    )


def _some(images: Images, index: Tensor) -> Images:
    places = index.tolist()
    return Images(
        tuple(images.keys[place] for place in places),
        Chosen(images.pixels, index),
        None if images.files is None else tuple(images.files[place] for place in places),
        None if images.aspect is None else images.aspect[index],
    )
