"""Shuffled batches of source, labelled target and unlabelled target images, one epoch at a time.

The batches of an epoch depend only on the seed and the epoch number. A resumed run therefore sees the same
batches as an uninterrupted one.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats.data.domain import UNLABELLED, VOID, Domain, Images, Labels
from ducats.objectives import Batch, LabelledImages
from ducats.settings import LabelledBatches, StreamViews, View
from ducats.training import placement
from ducats.training.inputs import ModelInputs, model_inputs
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator

BatchSplitter = Callable[[Tensor, int], Sequence[Tensor]]  # (shuffled indices, batch size) -> batches


def check_batch_size(batch_size: int, world_size: int) -> None:
    """Raise if batches cannot be divided among all processes."""
    if batch_size % world_size or batch_size < 2 * world_size:
        raise UserError(
            f"train.batch_size={batch_size} must be a multiple of {world_size} processes, with at least two "
            "images per process: change train.batch_size, engine.processes or engine.nodes"
        )


MAX_HEAD_STEPS = 40  # per epoch, for a head on embeddings; longer training makes it worse
MAX_PIXEL_STEPS = 1000  # per epoch, in segmentation; published


def steps_in_epoch(
    source: int, pool: int, batch_size: int, *, head_only: bool = False, per_pixel: bool = False
) -> int:
    """Return the steps of an epoch: full batches of the larger of source and pool, as published.

    Args:
        head_only: whether only a head is trained, on embeddings; then there are at most `MAX_HEAD_STEPS`.
        per_pixel: whether labels are maps; then there are at most `MAX_PIXEL_STEPS`.

    >>> steps_in_epoch(source=2427, pool=4365, batch_size=32)
    136
    >>> steps_in_epoch(source=2427, pool=4365, batch_size=32, head_only=True)
    40
    """
    steps = max(1, source // batch_size, pool // batch_size)
    if head_only:
        return min(steps, MAX_HEAD_STEPS)
    return min(steps, MAX_PIXEL_STEPS) if per_pixel else steps


def full_batches(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Split into full batches and drop the rest; fewer items than one batch make a short batch."""
    full = len(order) // batch_size * batch_size
    return tuple(order[: full or len(order)].split(batch_size))


def even_batches(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Split into as few batches as possible, of nearly equal size.

    >>> [len(batch) for batch in even_batches(torch.arange(65), 32)]
    [22, 22, 21]
    """
    return order.tensor_split(-(-len(order) // batch_size))


def short_last_batch(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Split into full batches and a short last one (published).

    The short batch may be a single image, repeated: its batch statistics have no variance, and on small label
    sets they corrupt the running statistics. Hence ``even_batches`` is the default.
    """
    return tuple(order.split(batch_size))


LABELLED_BATCHES: Mapping[LabelledBatches, BatchSplitter] = {
    "even": even_batches,
    "short_last": short_last_batch,
}


def shuffled_batches(
    indices: Tensor,
    batch_size: int,
    steps: int,
    generator: torch.Generator,
    split: BatchSplitter,
) -> Iterator[Tensor]:
    """Yield ``steps`` batches of ``indices``, reshuffled for each pass."""
    done = 0
    while True:
        for batch in split(indices[torch.randperm(len(indices), generator=generator)], batch_size):
            if done == steps:
                return
            yield batch
            done += 1


def rare_class_order(
    presence: Tensor, count: int, generator: torch.Generator, reset_every: int = 3000
) -> Tensor:
    """Sample ``count`` images, oversampling rare classes, and return them in random order.

    Each image is sampled in two steps. First, class c is drawn with probability proportional to
    ``1 / ln(1.01 + f_c)``, where f_c is its share of all classes seen so far. Then the next image of that
    class is taken from a shuffled list, and every class in the image is counted as seen.

    Args:
        presence: ``(N, C)`` bool: whether image n contains class c.
        reset_every: images after which the counts are reset; published: 3000.
    """
    images_by_class = [_shuffled(column.nonzero().squeeze(1), generator) for column in presence.T]
    has_images = torch.tensor([len(images) > 0 for images in images_by_class]).double().numpy()
    if not has_images.any():
        raise UserError("no source image contains a labelled pixel; check the label maps of the source")
    uniforms, presence_array = torch.rand(count, generator=generator).tolist(), presence.double().numpy()
    order, positions, seen_counts = [], [0] * len(images_by_class), np.zeros(len(images_by_class))
    for number in range(count):
        if number % reset_every == 0:
            seen_counts = np.zeros(len(images_by_class))
        cumulative_weights = np.cumsum(has_images / np.log(1.01 + seen_counts / max(1.0, seen_counts.sum())))
        sampled_class = int(
            np.searchsorted(cumulative_weights, uniforms[number] * cumulative_weights[-1], side="right")
        )
        if positions[sampled_class] == len(images_by_class[sampled_class]):
            positions[sampled_class], images_by_class[sampled_class] = (
                0,
                _shuffled(images_by_class[sampled_class], generator),
            )
        image = int(images_by_class[sampled_class][positions[sampled_class]])
        positions[sampled_class] += 1
        seen_counts = seen_counts + presence_array[image]
        order.append(image)
    return _shuffled(torch.tensor(order), generator)


def class_presence(source: Domain) -> Tensor:
    """Return which image contains which class: bool ``(N, C)``."""
    count = len(source.classes)
    if not source.per_pixel:
        return torch.nn.functional.one_hot(torch.as_tensor(source.labels[:]).long(), count).bool()
    presence = []
    for image in range(len(source)):
        # Count from VOID upwards: masking out unlabelled pixels first would take twenty times as long.
        shifted = source.labels[image].flatten().short() - VOID
        presence.append(torch.bincount(shifted, minlength=count - VOID)[-VOID : count - VOID] > 0)
    return torch.stack(presence).cpu()


def _shuffled(items: Tensor, generator: torch.Generator) -> Tensor:
    return items[torch.randperm(len(items), generator=generator)]


def pad_batch(batch: Tensor, world_size: int) -> Tensor:
    """Repeat a short batch from its start until all ranks get the same number of images, at least two.

    Batch statistics need two images.

    >>> pad_batch(torch.tensor([7]), world_size=1), pad_batch(torch.tensor([1, 2, 3]), world_size=2)
    (tensor([7, 7]), tensor([1, 2, 3, 1]))
    """
    padded_length = max(2 * world_size, -(-len(batch) // world_size) * world_size)
    return batch.repeat(-(-padded_length // len(batch)))[:padded_length]


@dataclass(frozen=True)
class Stream:
    """One rank's share of a stream in one epoch: image indices and augmentation parameters.

    Sampled and sent to the device once per epoch, which saves a copy in every step.
    """

    inputs: ModelInputs
    index: Tensor  # (M,), in the order of use, on the host
    device_index: Tensor  # `index` on the device
    aug_params: Tensor  # (M, ...), on the device
    labels: Labels | None  # (M,), of `index`, on the device; or the label maps of all images
    batch_slices: Sequence[slice]  # one per batch

    def fetch(self, step: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Return a batch as stored and its label maps, on the device if stored there, else on the host."""
        batch_slice = self.batch_slices[step]
        index, device_index = self.index[batch_slice], self.device_index[batch_slice]
        stored = placement.index_batch(self.inputs.stored, index, device_index, device)
        if self.labels is None or self.labels.ndim == 1:
            return stored, None
        return stored, placement.index_batch(self.labels, index, device_index, device)

    def is_on_device(self, device: torch.device) -> bool:
        """Return whether all data is on the device."""
        has_label_maps = self.labels is not None and self.labels.ndim > 1
        return placement.is_on_device(self.inputs.stored, device) and (
            not has_label_maps or placement.is_on_device(self.labels, device)
        )

    def augment(self, step: int, fetched: tuple[Tensor, Tensor | None]) -> "AugmentedBatch":
        """Apply the view to a batch; return augmented images, labels and stored images."""
        batch_slice, (stored, maps) = self.batch_slices[step], fetched
        device, aug_params = self.aug_params.device, self.aug_params[self.batch_slices[step]]
        stored = placement.to_device(stored, device)
        augmented = self.inputs.apply(stored, aug_params)
        if maps is not None:
            label_maps = self.inputs.apply_to_labels(placement.to_device(maps, device), aug_params)
            return AugmentedBatch(augmented, label_maps, stored)
        labels = None if self.labels is None else self.labels[batch_slice]
        return AugmentedBatch(augmented, labels, stored)


class AugmentedBatch(NamedTuple):
    """A batch of one stream."""

    images: Tensor
    labels: Tensor | None
    stored: Tensor  # the images before the view, or their embeddings of all views


@dataclass(frozen=True)
class Streams:
    """The streams of a run: source, unlabelled target, labelled target.

    In segmentation, target images with labelled and unlabelled pixels are one stream, ``target``. Images
    labelled as a whole form the stream ``labelled``.
    """

    source: Domain
    pool: Images
    views: StreamViews
    batch_size: int  # of each stream, over all ranks
    steps_per_epoch: int  # batches per epoch
    seed: int
    labelled_batches: LabelledBatches = "even"
    unlabelled_includes_labelled: bool = False  # classification only
    class_presence: Tensor | None = None  # (source, C) bool, by image and class, to oversample rare classes
    with_strong_view: bool = False  # whether batches include the strong view of unlabelled images
    with_stored_images: bool = False  # whether batches include the stored images of source and labelled

    def epoch(
        self,
        epoch: int,
        targets: Labels,
        fabric: Fabric,
        *,
        whole_images: Tensor | None = None,
        has_labels: bool = True,
        pseudo_labels: Tensor | None = None,
    ) -> Iterator[Batch]:
        """Yield this rank's share of an epoch's batches, on the device.

        Args:
            epoch: counts from 0.
            targets: labels of the pool's images or pixels, from the ledger; UNLABELLED and VOID are negative.
            whole_images: indices of images labelled as a whole, if the unit is ``image``.
            has_labels: whether any labels were acquired; False before the first round.
            pseudo_labels: pseudo-labels of the pool, ``(pool,)``; acquired labels take precedence.
        """
        check_batch_size(self.batch_size, fabric.world_size)
        sample = partial(self._sample_stream, epoch=epoch, fabric=fabric)
        source, pool, split = self.source, self.pool, LABELLED_BATCHES[self.labelled_batches]
        all_source = torch.arange(len(source))
        streams = {"source": sample("source", source.images, all_source, full_batches, source.labels)}
        if targets.ndim == 1:
            labels = torch.as_tensor(targets[:])
            labelled = (labels >= 0).nonzero().squeeze(1)
            is_unlabelled = labels == UNLABELLED
            if pseudo_labels is not None:
                is_pseudo_labelled = is_unlabelled & (pseudo_labels >= 0)
                is_unlabelled &= ~is_pseudo_labelled
                pseudo_labelled = is_pseudo_labelled.nonzero().squeeze(1)
                streams["certain"] = sample("certain", pool, pseudo_labelled, split, pseudo_labels)
            if self.unlabelled_includes_labelled:
                is_unlabelled |= labels >= 0
            unlabelled = is_unlabelled.nonzero().squeeze(1)
            streams["unlabelled"] = sample("unlabelled", pool, unlabelled, full_batches)
            if self.with_strong_view:
                streams["strong"] = sample("strong", pool, unlabelled, full_batches)
        else:
            labelled = torch.zeros(0, dtype=torch.long) if whole_images is None else whole_images
            is_other = torch.ones(len(pool), dtype=torch.bool).index_fill_(0, labelled, False)
            others = is_other.nonzero().squeeze(1)
            streams["target"] = sample("target", pool, others, full_batches, targets)
        streams["labelled"] = sample("labelled", pool, labelled, split, targets)
        non_empty = {name: stream for name, stream in streams.items() if stream is not None}
        yield from self._batches(non_empty, fabric, has_labels=has_labels and whole_images is None)

    def _batches(self, streams: Mapping[str, Stream], fabric: Fabric, *, has_labels: bool) -> Iterator[Batch]:
        device = fabric.device

        def fetch(step: int) -> dict[str, tuple[Tensor, Tensor | None]]:
            return {name: stream.fetch(step, device) for name, stream in streams.items()}

        all_on_device = all(stream.is_on_device(device) for stream in streams.values())
        with closing(placement.produce(fetch, self.steps_per_epoch, prefetched=not all_on_device)) as steps:
            for step, fetched in enumerate(steps):
                augmented = {name: stream.augment(step, fetched[name]) for name, stream in streams.items()}
                yield Batch(
                    source=_as_labelled(augmented["source"]),
                    labelled=_as_labelled(augmented["labelled"]) if "labelled" in augmented else None,
                    unlabelled=augmented["unlabelled"].images if "unlabelled" in augmented else None,
                    target=_as_labelled(augmented["target"]) if "target" in augmented else None,
                    strong=augmented["strong"].images if "strong" in augmented else None,
                    pseudo_labelled=_as_labelled(augmented["certain"]) if "certain" in augmented else None,
                    **self._stored_images(augmented),
                    has_target_labels=has_labels,
                )

    def _stored_images(self, augmented: Mapping[str, AugmentedBatch]) -> Mapping[str, Tensor]:
        """Return the stored images of the labelled streams, if a module reads them."""
        names = ("source", "labelled") if self.with_stored_images else ()
        return {f"stored_{name}": augmented[name].stored for name in names if name in augmented}

    def _sample_stream(
        self,
        name: str,
        images: Images,
        indices: Tensor,
        split: BatchSplitter,
        labels: Labels | None = None,
        *,
        epoch: int,
        fabric: Fabric,
    ) -> Stream | None:
        """Sample a stream's epoch; return None if the stream has no images."""
        if len(indices) == 0:
            return None
        # The strong view shows the same images in the same order.
        order_name = "unlabelled" if name == "strong" else name
        world_size, generator = fabric.world_size, make_generator(self.seed, order_name, "order", epoch)
        view: View = getattr(self.views, STREAM_VIEWS.get(name, name))
        if name == "source" and self.class_presence is not None:
            sampled = rare_class_order(self.class_presence, self.steps_per_epoch * self.batch_size, generator)
            order: Iterable[Tensor] = sampled.split(self.batch_size)
        else:
            order = shuffled_batches(indices, self.batch_size, self.steps_per_epoch, generator, split)
        batches = [pad_batch(batch, world_size) for batch in order]
        index = torch.cat(batches)
        inputs = model_inputs(images, view)
        aug_params = inputs.sample_params(index, make_generator(self.seed, name, "view", epoch))
        # Parameters belong to positions in the global batch: views are the same for any number of ranks.
        lengths = [len(batch) // world_size for batch in batches]
        rank_positions = torch.cat(
            [
                torch.arange(fabric.global_rank, len(batch), world_size) + before
                for batch, before in zip(batches, _offsets([len(b) for b in batches]), strict=True)
            ]
        )
        index = index[rank_positions]
        stream_labels = labels
        if labels is not None and labels.ndim == 1:
            stream_labels = fabric.to_device(labels[index])
        batch_slices = [
            slice(start, start + length) for start, length in zip(_offsets(lengths), lengths, strict=True)
        ]
        device_index = fabric.to_device(index)
        return Stream(
            inputs,
            index,
            device_index,
            fabric.to_device(aug_params[rank_positions]),
            stream_labels,
            batch_slices,
        )


# View of each stream, unless it has the stream's name. The names seed random generators and must not change.
STREAM_VIEWS = {
    "labelled": "labelled_or_source",
    "target": "unlabelled",
    "certain": "labelled_or_source",
    "strong": "strong_or_default",
}


def _as_labelled(batch: AugmentedBatch) -> LabelledImages:
    assert batch.labels is not None
    return LabelledImages(batch.images, batch.labels)


def _offsets(lengths: Sequence[int]) -> list[int]:
    """Return the start offset of each part.

    >>> _offsets([3, 2, 4])
    [0, 3, 5]
    """
    return [0, *itertools.accumulate(lengths)][:-1]
