"""Streams: shuffled batches of source, labelled target and unlabelled target, one epoch at a time.

An epoch's batches follow from the seed and the epoch's number alone, so a run that goes on after a kill
draws what it would have drawn.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats.data.views import View, look
from ducats.domain import UNLABELLED, Domain, Images
from ducats.errors import UserError
from ducats.objectives import Batch, Labelled
from ducats.randomness import fork

PLAIN = View()
Cut = Callable[[Tensor, int], Sequence[Tensor]]  # a shuffled pass, batch size -> batches


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


CUTS: Mapping[str, Cut] = {
    "even": even_batches,
    "short_last": short_last,
}


def passes(
    items: Tensor,
    batch_size: int,
    steps: int,
    generator: torch.Generator,
    cut: Cut,
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


@dataclass(frozen=True)
class Streams:
    """Three streams side by side: source, unlabelled target, labelled target."""

    source: Domain
    pool: Images
    views: Views
    batch_size: int  # of each stream, over all processes
    steps: int  # batches in an epoch
    seed: int
    labelled_batches: str = "even"  # how bought images are cut into batches, a name from CUTS

    def epoch(self, number: int, targets: Tensor, fabric: Fabric) -> Iterator[Batch]:
        """This process's share of one epoch's batches, on the device.

        Args:
            number: of the epoch; with the seed it fixes the batches.
            targets: ``(len(pool),)``, what the ledger knows; UNLABELLED and VOID are below zero.
            fabric: device and processes.
        """
        world = fabric.world_size
        if self.batch_size % world or self.batch_size < 2 * world:
            raise UserError(
                f"train.batch_size={self.batch_size} must be a multiple of {world} processes, two images each"
            )
        known = (targets >= 0).nonzero().squeeze(1)
        unknown = (targets == UNLABELLED).nonzero().squeeze(1)
        streams = zip(
            self._indices("source", torch.arange(len(self.source)), whole_batches, number),
            self._indices("unlabelled", unknown, whole_batches, number),
            self._indices("labelled", known, CUTS[self.labelled_batches], number),
            strict=True,
        )
        labels = self.source.labels
        for step, (source, unlabelled, labelled) in enumerate(streams):
            assert source is not None
            shown, index = self._show("source", self.source.images, source, (number, step), fabric)
            batch = Batch(Labelled(shown, fabric.to_device(labels[index])), None, None)
            if unlabelled is not None:
                shown, _ = self._show("unlabelled", self.pool, unlabelled, (number, step), fabric)
                batch = replace(batch, unlabelled=shown)
            if labelled is not None:
                shown, index = self._show("labelled", self.pool, labelled, (number, step), fabric)
                batch = replace(batch, labelled=Labelled(shown, fabric.to_device(targets[index])))
            yield batch

    def _indices(self, name: str, items: Tensor, cut: Cut, epoch: int) -> Iterator[Tensor | None]:
        """Indices of each batch of a stream, over all processes; None where the stream is empty."""
        if len(items) == 0:
            return iter([None] * self.steps)
        return passes(items, self.batch_size, self.steps, fork(self.seed, name, "order", epoch), cut)

    def _show(
        self, name: str, images: Images, index: Tensor, place: tuple[int, int], fabric: Fabric
    ) -> tuple[Tensor, Tensor]:
        """This process's share of a batch, as it is looked at, and where it came from."""
        mine = fill(index, fabric.world_size)[fabric.global_rank :: fabric.world_size]
        luck = fork(self.seed, name, "view", *place, fabric.global_rank)
        return fabric.to_device(look(images.pixels[mine], getattr(self.views, name), luck)), mine
