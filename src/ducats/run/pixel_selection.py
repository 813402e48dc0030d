"""Scoring and selection of pixels, batch by batch: only a few maps are in memory at a time."""

from collections.abc import Callable, Iterator, Sequence

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats.acquisition.queries import QuerySpec
from ducats.acquisition.samples import SampleTable
from ducats.acquisition.units import PixelSelection, image_columns, select_in_image
from ducats.data.domain import UNLABELLED, Images, Labels
from ducats.models.output import Output
from ducats.settings import Unit
from ducats.training.distributed import all_gather_rows, all_ranks_or_raise, rank_share
from ducats.training.predictor import Predictor, check_finite
from ducats.utils.randomness import make_generator

KnownLabelsFn = Callable[[int], Tensor]  # known labels of an image in the labelling grid: int8 (H, W)


@torch.inference_mode()
def select_pixels(
    predictor: Predictor,
    pool: Images,
    query: QuerySpec,
    *,
    unit: Unit,
    sizes: Tensor,
    known_labels_of: KnownLabelsFn,
    budget: Sequence[int],
    acquired_of: Callable[[int], Tensor] | None = None,
    head: Tensor | None = None,
) -> Iterator[tuple[int, PixelSelection]]:
    """Yield the pixels to label in each image, in image order; every process gets all of them.

    Pixels compete within their image, and each image has its own generator. If the query needs no columns,
    there is no forward pass. Batches without any budget are skipped.

    Args:
        sizes: ``(N, 2)``, height and width of the labelling grid.
        acquired_of: mask of the pixels of an image that were selected in earlier rounds, ``(H, W)``; by
            default those with a class.
        head: the last layer's weights, if the query reads them.
    """
    fabric = predictor.fabric
    batches = torch.arange(len(pool)).split(predictor.batch_size)
    # A budget in annotation time may cover only a few images; the others need no forward pass.
    batches = tuple(batch for batch in batches if any(budget[image] for image in batch.tolist()))

    def select_in_batch(index: Tensor, output: Output | None) -> list[tuple[int, PixelSelection]]:
        selections = []
        if output is not None:
            check_finite(output.z)
        for i, image in enumerate(index.tolist()):
            z, features, extras = None, None, None
            if not budget[image]:
                selections.append((image, PixelSelection(torch.zeros(0, dtype=torch.long))))
                continue
            if output is not None:
                z, features, extras = _pixel_outputs(predictor, output, i, sizes[image], query)
            selection = select_in_image(
                query,
                unit,
                z=z,
                features=features,
                extras=extras,
                head=head,
                known_labels=known_labels_of(image).to(fabric.device),
                acquired=None if acquired_of is None else acquired_of(image).to(fabric.device),
                image=image,
                pixels=pool.pixels[image] if unit.resolved_unit == "superpixel" else None,
                budget=budget[image],
                generator=make_generator(predictor.seed, "image", image),
            )
            selections.append((image, selection))
        return selections

    own_batches = rank_share(batches, fabric)
    if query.needs:
        results = (select_in_batch(*one) for one in predictor.forward(pool, own_batches))
    else:
        results = (select_in_batch(index, None) for index in own_batches)
    for _ in range(-(-len(batches) // fabric.world_size)):
        selections = all_ranks_or_raise(fabric, lambda: next(results, []))
        yield from selections if fabric.world_size == 1 else _gather_selections(selections, fabric)


@torch.inference_mode()
def score_whole_images(
    predictor: Predictor,
    pool: Images,
    query: QuerySpec,
    *,
    sizes: Tensor,
    known_labels_of: KnownLabelsFn,
    labels: Labels | None = None,
) -> SampleTable:
    """Return one row per image with its pixels' values aggregated, for images that are labelled whole.

    Arguments are those of ``select_pixels``. ``labels`` are the label maps of the source images: their
    descriptors cover correctly predicted pixels only.
    """
    all_images, fabric = torch.arange(len(pool)), predictor.fabric
    samples = SampleTable(all_images, torch.zeros_like(all_images), {})
    if not query.needs:
        return samples
    indices: list[Tensor] = []
    collected: dict[str, list[Tensor]] = {name: [] for name in query.needs}
    own_batches = predictor.share(all_images)
    # A process without a batch still scores one image to learn the shape of a row, then discards it.
    batches = own_batches or (all_images[:1],)

    def score_batches() -> None:
        for index, output in predictor.forward(pool, batches):
            indices.append(index)
            check_finite(output.z)
            for i, image in enumerate(index.tolist()):
                z, features, extras = _pixel_outputs(predictor, output, i, sizes[image], query)
                known_labels = known_labels_of(image).to(fabric.device)
                source_labels = None if labels is None else labels[image].to(fabric.device)
                for name, column in image_columns(
                    z, features, known_labels, query.needs, extras, source_labels
                ).items():
                    collected[name].append(column.cpu())

    all_ranks_or_raise(fabric, score_batches)
    own_rows = slice(None) if own_batches else slice(0)
    order = all_gather_rows(torch.cat(indices)[own_rows], fabric).argsort()
    columns = {
        name: all_gather_rows(torch.cat(tensors)[own_rows], fabric)[order]
        for name, tensors in collected.items()
    }
    return SampleTable(samples.image, samples.position, columns)


def all_open_pixels(known_labels_of: KnownLabelsFn, image: int) -> PixelSelection:
    """Select all unlabelled pixels of an image as one unit."""
    position = (known_labels_of(image).flatten() == UNLABELLED).nonzero().squeeze(1)
    return PixelSelection(position, torch.tensor([len(position)]))


def _pixel_outputs(
    predictor: Predictor, output: Output, i: int, size: Tensor, query: QuerySpec
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Return one image's log alpha ``(C, H, W)``, its features if needed, and its probe columns."""
    z = predictor.pixel_logits(output, i, size)[0]
    extras = {name: column[i] for name, column in (output.extras or {}).items()}
    if not {"features", "descriptor"} & set(query.needs) or output.features is None:
        return z, None, extras
    return z, output.features[i], extras


def _gather_selections(
    selections: Sequence[tuple[int, PixelSelection]], fabric: Fabric
) -> Iterator[tuple[int, PixelSelection]]:
    """Gather the selections of all processes, in image order."""
    empty = torch.zeros(0, dtype=torch.long)
    unit_sizes = [
        p.unit_sizes if p.unit_sizes is not None else torch.ones_like(p.position) for _, p in selections
    ]
    counts = torch.tensor(
        [
            [image, len(p.position), len(sizes)]
            for (image, p), sizes in zip(selections, unit_sizes, strict=True)
        ]
    )
    counts = all_gather_rows(counts.reshape(-1, 3).long(), fabric)
    positions = all_gather_rows(torch.cat([empty, *(p.position for _, p in selections)]), fabric)
    all_unit_sizes = all_gather_rows(torch.cat([empty, *unit_sizes]), fabric)
    offsets = torch.cat([torch.zeros(1, 3, dtype=torch.long), counts.cumsum(0)])
    for number in range(len(counts)):
        (_, start, unit_start), (_, stop, unit_stop) = offsets[number : number + 2].tolist()
        yield (
            int(counts[number, 0]),
            PixelSelection(positions[start:stop], all_unit_sizes[unit_start:unit_stop]),
        )
