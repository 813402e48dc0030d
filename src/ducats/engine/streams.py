"""Streams: shuffled batches of source, labelled target and unlabelled target, one epoch at a time.

An epoch's batches follow from the seed and the epoch's number alone, so a run that goes on after a kill
draws what it would have drawn.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats.data.views import View, draw, look
from ducats.domain import UNLABELLED, Domain, Images
from ducats.engine import resident
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
class Stream:
    """One process's share of one stream in one epoch: which images, and all that is random about them.

    Drawn for the whole epoch at once and sent to the device once, so that a step costs no draw and no copy.
    """

    images: Images
    view: View
    index: Tensor  # (M,), in the order of use; where the pixels are
    luck: Tensor  # (M, LUCK), on the device
    labels: Tensor | None  # (M,), on the device
    cuts: Sequence[slice]  # a batch each

    def raw(self, step: int, device: torch.device) -> Tensor:
        """A batch's pixels: on the device if they lie there, else in the host's memory, ready to be sent."""
        index = self.index[self.cuts[step]]
        if resident.on_device(self.images, device):
            return resident.take(self.images, index, device)
        return resident.gather(self.images, index, device)

    def show(self, step: int, raw: Tensor) -> tuple[Tensor, Tensor | None]:
        """A batch as it is looked at, and its labels."""
        cut = self.cuts[step]
        shown = look(resident.send(raw, self.luck.device), self.view, self.luck[cut])
        return shown, None if self.labels is None else self.labels[cut]


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
        every = torch.arange(len(self.source))
        known = (targets >= 0).nonzero().squeeze(1)
        unknown = (targets == UNLABELLED).nonzero().squeeze(1)
        cut = CUTS[self.labelled_batches]
        source, pool, labels = self.source.images, self.pool, self.source.labels
        streams = {
            "source": self._stream("source", source, every, whole_batches, number, fabric, labels),
            "unlabelled": self._stream("unlabelled", pool, unknown, whole_batches, number, fabric),
            "labelled": self._stream("labelled", pool, known, cut, number, fabric, targets),
        }
        yield from self._batches({name: made for name, made in streams.items() if made is not None}, fabric)

    def _batches(self, streams: Mapping[str, Stream], fabric: Fabric) -> Iterator[Batch]:
        device = fabric.device

        def raw(step: int) -> dict[str, Tensor]:
            return {name: stream.raw(step, device) for name, stream in streams.items()}

        near = all(resident.on_device(stream.images, device) for stream in streams.values())
        with closing(resident.in_order(raw, self.steps, ahead=not near)) as taken:
            for step, pixels in enumerate(taken):
                shown = {name: stream.show(step, pixels[name]) for name, stream in streams.items()}
                yield Batch(
                    source=_labelled(shown["source"]),
                    labelled=_labelled(shown["labelled"]) if "labelled" in shown else None,
                    unlabelled=shown["unlabelled"][0] if "unlabelled" in shown else None,
                )

    def _stream(
        self,
        name: str,
        images: Images,
        items: Tensor,
        cut: Cut,
        epoch: int,
        fabric: Fabric,
        labels: Tensor | None = None,
    ) -> Stream | None:
        """A stream's epoch, drawn, with labels where its images have some; None if it is empty."""
        if len(items) == 0:
            return None
        world, view = fabric.world_size, getattr(self.views, name)
        order = passes(items, self.batch_size, self.steps, fork(self.seed, name, "order", epoch), cut)
        batches = [fill(batch, world) for batch in order]
        index = torch.cat(batches)
        height, width = images.pixels.shape[-2:]
        aspect = None if images.aspect is None else images.aspect[index]
        luck = draw(view, len(index), height, width, fork(self.seed, name, "view", epoch), aspect)
        # Luck belongs to the place in the global batch: another number of processes sees the same views.
        lengths = [len(batch) // world for batch in batches]
        mine = torch.cat(
            [
                torch.arange(fabric.global_rank, len(batch), world) + before
                for batch, before in zip(batches, _starts([len(b) for b in batches]), strict=True)
            ]
        )
        index = index[mine]
        known = None if labels is None else fabric.to_device(labels[index])
        if resident.on_device(images, fabric.device):
            index = fabric.to_device(index)
        cuts = [slice(start, start + length) for start, length in zip(_starts(lengths), lengths, strict=True)]
        return Stream(images, view, index, fabric.to_device(luck[mine]), known, cuts)


def _labelled(shown: tuple[Tensor, Tensor | None]) -> Labelled:
    images, labels = shown
    assert labels is not None
    return Labelled(images, labels)


def _starts(lengths: Sequence[int]) -> list[int]:
    """Where each part begins in the whole.

    >>> _starts([3, 2, 4])
    [0, 3, 5]
    """
    return [0, *itertools.accumulate(lengths)][:-1]
