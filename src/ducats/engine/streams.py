"""Streams: shuffled batches of source, labelled target and unlabelled target, one epoch at a time.

An epoch's batches follow from the seed and the epoch's number alone, so a run that goes on after a kill
draws what it would have drawn.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats.data.views import View, look
from ducats.domain import UNLABELLED, Domain, Images
from ducats.errors import UserError
from ducats.objectives import Batch, Labelled
from ducats.randomness import fork

PLAIN = View()


@dataclass(frozen=True)
class Views:
    """One view per use of the images."""

    source: View = PLAIN
    labelled: View = PLAIN
    unlabelled: View = PLAIN
    scoring: View = PLAIN
    test: View = PLAIN


def steps_in_epoch(source: int, pool: int, batch_size: int) -> int:
    """Steps of an epoch: full batches of the longer of source and pool, as published.

    >>> steps_in_epoch(source=2427, pool=4365, batch_size=32)
    136
    """
    return max(1, source // batch_size, pool // batch_size)


def whole_batches(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Cut a pass into full batches; the rest waits for another pass. Too few for one make a short one."""
    full = len(order) // batch_size * batch_size
    return tuple(order[: full or len(order)].split(batch_size))


def even_batches(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Cut a pass into as few batches as possible, all of nearly one size.

    >>> [len(batch) for batch in even_batches(torch.arange(65), 32)]
    [22, 22, 21]
    """
    return order.tensor_split(-(-len(order) // batch_size))


def short_last(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Cut a pass into full batches and a short one (published).

    The short one may be a single image, doubled: its batch statistics have no variance, and on small label
    sets they spoil the running ones. Hence ``even_batches`` is the default.
    """
    return tuple(order.split(batch_size))


CUTS: Mapping[str, Callable[[Tensor, int], Sequence[Tensor]]] = {
    "even": even_batches,
    "short_last": short_last,
}


def passes(
    items: Tensor,
    batch_size: int,
    steps: int,
    generator: torch.Generator,
    cut: Callable[[Tensor, int], Sequence[Tensor]],
) -> Iterator[Tensor]:
    """``steps`` batches of ``items``: shuffled passes, each cut into batches, a new order each time."""
    done = 0
    while True:
        for batch in cut(items[torch.randperm(len(items), generator=generator)], batch_size):
            if done == steps:
                return
            yield batch
            done += 1


def fill(batch: Tensor, processes: int) -> Tensor:
    """Repeat a short batch from its start until each process gets two or more, and all the same number.

    Batch statistics need two images: one alone is doubled.

    >>> fill(torch.tensor([7]), processes=1), fill(torch.tensor([1, 2, 3]), processes=2)
    (tensor([7, 7]), tensor([1, 2, 3, 1]))
    """
    wanted = max(2 * processes, -(-len(batch) // processes) * processes)
    return batch.repeat(-(-wanted // len(batch)))[:wanted]


def epoch_batches(
    *,
    source: Domain,
    pool: Images,
    targets: Tensor,
    views: Views,
    batch_size: int,
    steps: int,
    seed: int,
    epoch: int,
    fabric: Fabric,
    labelled_batches: str = "even",
) -> Iterator[Batch]:
    """This process's share of one epoch's batches, on the device.

    Args:
        source: labelled images.
        pool: target images.
        targets: ``(len(pool),)``, what the ledger knows; UNLABELLED and VOID are below zero.
        views: how each stream is looked at.
        batch_size: of each stream, over all processes.
        steps: batches in the epoch.
        seed: of the run.
        epoch: its number.
        fabric: device and processes.
        labelled_batches: how bought images are cut into batches, a name from ``CUTS``.
    """
    world = fabric.world_size
    if batch_size % world or batch_size < 2 * world:
        raise UserError(
            f"train.batch_size={batch_size} must be a multiple of {world} processes, two images each"
        )
    known = (targets >= 0).nonzero().squeeze(1)
    unknown = (targets == UNLABELLED).nonzero().squeeze(1)

    def stream(
        name: str, items: Tensor, cut: Callable[[Tensor, int], Sequence[Tensor]]
    ) -> Iterator[Tensor | None]:
        if len(items) == 0:
            return iter([None] * steps)
        return passes(items, batch_size, steps, fork(seed, name, "order", epoch), cut)

    def show(name: str, images: Images, index: Tensor, view: View, step: int) -> tuple[Tensor, Tensor]:
        mine = fill(index, world)[fabric.global_rank :: world]
        luck = fork(seed, name, "view", epoch, step, fabric.global_rank)
        return fabric.to_device(look(images.pixels[mine], view, luck)), mine

    streams = zip(
        stream("source", torch.arange(len(source)), whole_batches),
        stream("unlabelled", unknown, whole_batches),
        stream("labelled", known, CUTS[labelled_batches]),
        strict=True,
    )
    for step, (from_source, from_unknown, from_known) in enumerate(streams):
        assert from_source is not None
        images, index = show("source", source.images, from_source, views.source, step)
        batch_source = Labelled(images, fabric.to_device(source.labels[index]))
        labelled = unlabelled = None
        if from_unknown is not None:
            unlabelled, _ = show("unlabelled", pool, from_unknown, views.unlabelled, step)
        if from_known is not None:
            images, index = show("labelled", pool, from_known, views.labelled, step)
            labelled = Labelled(images, fabric.to_device(targets[index]))
        yield Batch(batch_source, labelled, unlabelled)
