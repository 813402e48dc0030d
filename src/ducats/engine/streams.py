"""Shuffled batches of source, labelled target and unlabelled target images, one epoch at a time.

The batches of an epoch depend only on the seed and the epoch number. A resumed run therefore sees the same
batches as an uninterrupted one.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats.data.views import View, apply_view, apply_view_to_labels, sample_view_params
from ducats.domain import UNLABELLED, VOID, Domain, Images, Labels
from ducats.engine import resident
from ducats.errors import UserError
from ducats.objectives import Batch, LabelledImages
from ducats.randomness import fork

PLAIN = View()
Cut = Callable[[Tensor, int], Sequence[Tensor]]  # (shuffled indices, batch size) -> batches


@dataclass(frozen=True)
class Views:
    """One view per use of the images.

    In segmentation, target images with labelled and unlabelled pixels use ``unlabelled``.
    """

    source: View = PLAIN
    labelled: View = PLAIN
    unlabelled: View = PLAIN
    scoring: View = PLAIN
    test: View = PLAIN
    strong: View | None = None  # second view of unlabelled images, for consistency losses; None: `stronger`

    @property
    def stronger(self) -> View:
        """The strong view; by default `unlabelled` with RandAugment and cutout."""
        return self.strong or replace(self.unlabelled, randaugment=(2, 10), cutout=0.5)


def steps_in_epoch(source: int, pool: int, batch_size: int) -> int:
    """Return the steps of an epoch: full batches of the larger of source and pool, as published.

    >>> steps_in_epoch(source=2427, pool=4365, batch_size=32)
    136
    """
    return max(1, source // batch_size, pool // batch_size)


def whole_batches(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Split into full batches and drop the rest; fewer items than one batch make a short batch."""
    full = len(order) // batch_size * batch_size
    return tuple(order[: full or len(order)].split(batch_size))


def even_batches(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Split into as few batches as possible, of nearly equal size.

    >>> [len(batch) for batch in even_batches(torch.arange(65), 32)]
    [22, 22, 21]
    """
    return order.tensor_split(-(-len(order) // batch_size))


def short_last(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Split into full batches and a short last one (published).

    The short batch may be a single image, repeated: its batch statistics have no variance, and on small label
    sets they corrupt the running statistics. Hence ``even_batches`` is the default.
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
    """Yield ``steps`` batches of ``items``, reshuffled for each pass."""
    done = 0
    while True:
        for batch in cut(items[torch.randperm(len(items), generator=generator)], batch_size):
            if done == steps:
                return
            yield batch
            done += 1


def rare_first(presence: Tensor, count: int, generator: torch.Generator, span: int = 3000) -> Tensor:
    """Sample ``count`` images, oversampling rare classes, and return them in random order.

    Each image is sampled in two steps. First, class c is drawn with probability proportional to
    ``1 / ln(1.01 + f_c)``, where f_c is its share of all classes seen so far. Then the next image of that
    class is taken from a shuffled list, and every class in the image is counted as seen.

    Args:
        presence: ``(N, C)`` bool: whether image n contains class c.
        count: images to sample.
        generator: the only source of randomness.
        span: images after which the counts are reset; published: 3000.
    """
    holders = [_shuffled(column.nonzero().squeeze(1), generator) for column in presence.T]
    possible = torch.tensor([len(images) > 0 for images in holders]).double().numpy()
    if not possible.any():
        raise UserError("no source image contains a labelled pixel; check the label maps of the source")
    luck, shows = torch.rand(count, generator=generator).tolist(), presence.double().numpy()
    order, place, seen = [], [0] * len(holders), np.zeros(len(holders))
    for number in range(count):
        if number % span == 0:
            seen = np.zeros(len(holders))
        chances = np.cumsum(possible / np.log(1.01 + seen / max(1.0, seen.sum())))
        drawn = int(np.searchsorted(chances, luck[number] * chances[-1], side="right"))
        if place[drawn] == len(holders[drawn]):
            place[drawn], holders[drawn] = 0, _shuffled(holders[drawn], generator)
        image = int(holders[drawn][place[drawn]])
        place[drawn] += 1
        seen = seen + shows[image]
        order.append(image)
    return _shuffled(torch.tensor(order), generator)


def classes_shown(source: Domain) -> Tensor:
    """Return which image contains which class: bool ``(N, C)``."""
    count = len(source.classes)
    if not source.of_pixels:
        return torch.nn.functional.one_hot(torch.as_tensor(source.labels[:]).long(), count).bool()
    rows = []
    for image in range(len(source)):
        # Count from VOID upwards: masking out unlabelled pixels first would take twenty times as long.
        found = source.labels[image].flatten().short() - VOID
        rows.append(torch.bincount(found, minlength=count - VOID)[-VOID : count - VOID] > 0)
    return torch.stack(rows).cpu()


def _shuffled(items: Tensor, generator: torch.Generator) -> Tensor:
    return items[torch.randperm(len(items), generator=generator)]


def fill(batch: Tensor, processes: int) -> Tensor:
    """Repeat a short batch from its start until all ranks get the same number of images, at least two.

    Batch statistics need two images.

    >>> fill(torch.tensor([7]), processes=1), fill(torch.tensor([1, 2, 3]), processes=2)
    (tensor([7, 7]), tensor([1, 2, 3, 1]))
    """
    wanted = max(2 * processes, -(-len(batch) // processes) * processes)
    return batch.repeat(-(-wanted // len(batch)))[:wanted]


@dataclass(frozen=True)
class Stream:
    """One rank's share of a stream in one epoch: image indices and augmentation parameters.

    Sampled and sent to the device once per epoch, which saves a copy in every step.
    """

    images: Images
    view: View
    index: Tensor  # (M,), in the order of use, on the host
    near: Tensor  # `index` on the device
    luck: Tensor  # (M, LUCK), on the device
    labels: Labels | None  # (M,), of `index`, on the device; or the label maps of all images
    cuts: Sequence[slice]  # one per batch

    def raw(self, step: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Return a batch's pixels and label maps, on the device if stored there, else on the host."""
        cut = self.cuts[step]
        maps = None
        if self.labels is not None and self.labels.ndim > 1:
            maps = resident.some(self.labels, self.index[cut], self.near[cut], device)
        return resident.some(self.images.pixels, self.index[cut], self.near[cut], device), maps

    def near_at_hand(self, device: torch.device) -> bool:
        """Return whether all data is on the device."""
        mapped = self.labels is not None and self.labels.ndim > 1
        return resident.on_device(self.images.pixels, device) and (
            not mapped or resident.on_device(self.labels, device)
        )

    def show(self, step: int, raw: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
        """Apply the view to a batch; return augmented images and labels."""
        cut, (pixels, maps) = self.cuts[step], raw
        device, luck = self.luck.device, self.luck[self.cuts[step]]
        shown = apply_view(resident.send(pixels, device), self.view, luck)
        if maps is not None:
            return shown, apply_view_to_labels(resident.send(maps, device), self.view, luck)
        return shown, None if self.labels is None else self.labels[cut]


@dataclass(frozen=True)
class Streams:
    """The streams of a run: source, unlabelled target, labelled target.

    In segmentation, target images with labelled and unlabelled pixels are one stream, ``target``. Images
    labelled as a whole form the stream ``labelled``.
    """

    source: Domain
    pool: Images
    views: Views
    batch_size: int  # of each stream, over all ranks
    steps: int  # batches per epoch
    seed: int
    labelled_batches: str = "even"  # how labelled images are split into batches, a name from CUTS
    presence: Tensor | None = None  # (source, C) bool: classes in each source image, to oversample rare ones
    strong: bool = False  # whether batches include the strong view of unlabelled images

    def epoch(
        self,
        number: int,
        targets: Labels,
        fabric: Fabric,
        *,
        whole: Tensor | None = None,
        bought: bool = True,
        own: Tensor | None = None,
    ) -> Iterator[Batch]:
        """Yield this rank's share of an epoch's batches, on the device.

        Args:
            number: of the epoch.
            targets: labels of the pool's images or pixels, from the ledger; UNLABELLED and VOID are negative.
            whole: indices of images labelled as a whole, if the unit is ``image``.
            bought: whether pixels of other images may have labels; False before the first round.
            own: pseudo-labels of the pool, ``(pool,)``; acquired labels take precedence.
        """
        world = fabric.world_size
        if self.batch_size % world or self.batch_size < 2 * world:
            raise UserError(
                f"train.batch_size={self.batch_size} must be a multiple of {world} processes, with at least "
                "two images per process"
            )
        every = torch.arange(len(self.source))
        source, pool, labels = self.source.images, self.pool, self.source.labels
        cut = CUTS[self.labelled_batches]
        streams = {"source": self._stream("source", source, every, whole_batches, number, fabric, labels)}
        if targets.ndim == 1:
            known = (torch.as_tensor(targets[:]) >= 0).nonzero().squeeze(1)
            open_ = torch.as_tensor(targets[:]) == UNLABELLED
            certain = torch.zeros_like(open_) if own is None else open_ & (own >= 0)
            unknown = (open_ & ~certain).nonzero().squeeze(1)
            streams |= {
                "unlabelled": self._stream("unlabelled", pool, unknown, whole_batches, number, fabric),
                "labelled": self._stream("labelled", pool, known, cut, number, fabric, targets),
            }
            if self.strong:
                streams["strong"] = self._stream("strong", pool, unknown, whole_batches, number, fabric)
            if own is not None:
                some = certain.nonzero().squeeze(1)
                streams["certain"] = self._stream("certain", pool, some, cut, number, fabric, own)
        else:
            known = torch.zeros(0, dtype=torch.long) if whole is None else whole
            mixed = torch.ones(len(pool), dtype=torch.bool).index_fill_(0, known, False).nonzero().squeeze(1)
            streams |= {
                "target": self._stream("target", pool, mixed, whole_batches, number, fabric, targets),
                "labelled": self._stream("labelled", pool, known, cut, number, fabric, targets),
            }
        made = {name: stream for name, stream in streams.items() if stream is not None}
        yield from self._batches(made, fabric, bought=bought and whole is None)

    def _batches(self, streams: Mapping[str, Stream], fabric: Fabric, *, bought: bool) -> Iterator[Batch]:
        device = fabric.device

        def raw(step: int) -> dict[str, tuple[Tensor, Tensor | None]]:
            return {name: stream.raw(step, device) for name, stream in streams.items()}

        near = all(stream.near_at_hand(device) for stream in streams.values())
        with closing(resident.in_order(raw, self.steps, ahead=not near)) as taken:
            for step, pixels in enumerate(taken):
                shown = {name: stream.show(step, pixels[name]) for name, stream in streams.items()}
                yield Batch(
                    source=_labelled(shown["source"]),
                    labelled=_labelled(shown["labelled"]) if "labelled" in shown else None,
                    unlabelled=shown["unlabelled"][0] if "unlabelled" in shown else None,
                    target=_labelled(shown["target"]) if "target" in shown else None,
                    strong=shown["strong"][0] if "strong" in shown else None,
                    pseudo_labelled=_labelled(shown["certain"]) if "certain" in shown else None,
                    has_target_labels=bought,
                )

    def _stream(
        self,
        name: str,
        images: Images,
        items: Tensor,
        cut: Cut,
        epoch: int,
        fabric: Fabric,
        labels: Labels | None = None,
    ) -> Stream | None:
        """Sample a stream's epoch; return None if the stream has no images."""
        if len(items) == 0:
            return None
        # The strong view shows the same images in the same order.
        order_of = "unlabelled" if name == "strong" else name
        world, generator = fabric.world_size, fork(self.seed, order_of, "order", epoch)
        view: View = getattr(self.views, SEEN_AS.get(name, name))
        if name == "source" and self.presence is not None:
            drawn = rare_first(self.presence, self.steps * self.batch_size, generator)
            order: Iterable[Tensor] = drawn.split(self.batch_size)
        else:
            order = passes(items, self.batch_size, self.steps, generator, cut)
        batches = [fill(batch, world) for batch in order]
        index = torch.cat(batches)
        height, width = images.pixels.shape[-2:]
        aspect = None if images.aspect is None else images.aspect[index]
        luck = sample_view_params(
            view, len(index), height, width, fork(self.seed, name, "view", epoch), aspect
        )
        # Parameters belong to positions in the global batch: views are the same for any number of ranks.
        lengths = [len(batch) // world for batch in batches]
        mine = torch.cat(
            [
                torch.arange(fabric.global_rank, len(batch), world) + before
                for batch, before in zip(batches, _starts([len(b) for b in batches]), strict=True)
            ]
        )
        index = index[mine]
        known = labels
        if labels is not None and labels.ndim == 1:
            known = fabric.to_device(labels[index])
        cuts = [slice(start, start + length) for start, length in zip(_starts(lengths), lengths, strict=True)]
        near = fabric.to_device(index)
        return Stream(images, view, index, near, fabric.to_device(luck[mine]), known, cuts)


SEEN_AS = {
    "target": "unlabelled",
    "certain": "labelled",
    "strong": "stronger",
}  # view of each stream whose name is not a view


def _labelled(shown: tuple[Tensor, Tensor | None]) -> LabelledImages:
    images, labels = shown
    assert labels is not None
    return LabelledImages(images, labels)


def _starts(lengths: Sequence[int]) -> list[int]:
    """Return the start offset of each part.

    >>> _starts([3, 2, 4])
    [0, 3, 5]
    """
    return [0, *itertools.accumulate(lengths)][:-1]
