"""Scoring and selection of pixels, batch by batch: only a few maps are in memory at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.data.views import View
from ducats.domain import UNLABELLED, Images, Labels
from ducats.engine.forward import Tell, check_finite, luck_of, said
from ducats.engine.processes import gather, share_of, together
from ducats.engine.task import Task
from ducats.grid import dense
from ducats.queries import QuerySpec
from ducats.randomness import fork
from ducats.rows import Output, Rows
from ducats.units import Picked, spend, summary

Asked = Callable[[int], Tensor]  # known labels of an image in the labelling grid: int8 (H, W)


@torch.inference_mode()
def pick(
    model: nn.Module,
    pool: Images,
    strategy: QuerySpec,
    *,
    task: Task,
    sizes: Tensor,
    asked: Asked,
    budget: Sequence[int],
    view: View,
    batch_size: int,
    seed: int,
    fabric: Fabric,
    tell: Tell | None = None,
    head: Tensor | None = None,
) -> Iterator[tuple[int, Picked]]:
    """Yield the pixels to label in each image, in image order; every process gets all of them.

    Pixels compete within their image. If the query needs no columns, there is no forward pass. Batches
    without any budget are skipped.

    Args:
        task: defines the unit that is labelled and the labelling grid.
        sizes: ``(N, 2)``, height and width of the labelling grid.
        asked: known labels of an image in that grid.
        budget: pixels to label in each image.
        seed: of this round; each image has its own generator.
        tell: computes the probes' columns; None if no probe is needed.
        head: the last layer's weights, if the query reads them.
    """
    batches = torch.arange(len(pool)).split(batch_size)
    # A budget in annotation time may cover only a few images; the others need no forward pass.
    batches = tuple(batch for batch in batches if any(budget[image] for image in batch.tolist()))

    def spent(index: Tensor, output: Output | None) -> list[tuple[int, Picked]]:
        found = []
        if output is not None:
            check_finite(output.z)
        for place, image in enumerate(index.tolist()):
            z, features, told = None, None, None
            if not budget[image]:
                found.append((image, Picked(torch.zeros(0, dtype=torch.long))))
                continue
            if output is not None:
                z, features, told = _maps(output, place, sizes[image], strategy, task)
            picked = spend(
                strategy,
                task.unit,
                z=z,
                features=features,
                told=told,
                head=head,
                target=asked(image).to(fabric.device),
                image=image,
                pixels=pool.pixels[image] if task.unit.name == "superpixel" else None,
                budget=budget[image],
                generator=fork(seed, "image", image),
            )
            found.append((image, picked))
        return found

    mine = share_of(batches, fabric)
    if strategy.needs:
        luck = luck_of(pool, view, fork(seed, "scoring"))
        how: dict[str, Any] = {"view": view, "luck": luck, "fabric": fabric, "tell": tell}
        results = (spent(*one) for one in said(model, pool, mine, **how))
    else:
        results = (spent(index, None) for index in mine)
    for _ in range(-(-len(batches) // fabric.world_size)):
        found = together(fabric, lambda: next(results, []))
        yield from found if fabric.world_size == 1 else _everyones(found, fabric)


@torch.inference_mode()
def image_table(
    model: nn.Module,
    pool: Images,
    strategy: QuerySpec,
    *,
    task: Task,
    sizes: Tensor,
    asked: Asked,
    view: View,
    batch_size: int,
    seed: int,
    fabric: Fabric,
    tell: Tell | None = None,
    labels: Labels | None = None,
) -> Rows:
    """Return one row per image with its pixels' values aggregated, for images that are labelled whole.

    Arguments are those of ``select_pixels``. ``labels`` are the label maps of the source images: their
    descriptors cover correctly predicted pixels only.
    """
    everyone = torch.arange(len(pool))
    rows = Rows(everyone, torch.zeros_like(everyone), {})
    if not strategy.needs:
        return rows
    luck = luck_of(pool, view, fork(seed, "scoring"))
    seen: list[Tensor] = []
    found: dict[str, list[Tensor]] = {name: [] for name in strategy.needs}
    mine = share_of(everyone.split(batch_size), fabric)
    # A process without a batch still scores one image to learn the shape of a row, then discards it.
    batches = mine or (everyone[:1],)

    def look() -> None:
        for index, output in said(model, pool, batches, view=view, luck=luck, fabric=fabric, tell=tell):
            seen.append(index)
            check_finite(output.z)
            for place, image in enumerate(index.tolist()):
                z, features, told = _maps(output, place, sizes[image], strategy, task)
                target = asked(image).to(fabric.device)
                truth = None if labels is None else labels[image].to(fabric.device)
                for name, column in summary(z, features, target, strategy.needs, told, truth).items():
                    found[name].append(column.cpu())

    together(fabric, look)
    kept = slice(None) if mine else slice(0)
    order = gather(torch.cat(seen)[kept], fabric).argsort()
    columns = {name: gather(torch.cat(parts)[kept], fabric)[order] for name, parts in found.items()}
    return Rows(rows.image, rows.position, columns)


def whole(asked: Asked, image: int) -> Picked:
    """Select all unlabelled pixels of an image as one unit."""
    position = (asked(image).flatten() == UNLABELLED).nonzero().squeeze(1)
    return Picked(position, torch.tensor([len(position)]))


def _maps(
    output: Output, place: int, size: Tensor, strategy: QuerySpec, task: Task
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Return one image's log alpha ``(C, H, W)``, its features if needed, and its probe columns."""
    tall, wide = (int(side) for side in size)
    z = dense(output._replace(z=output.z[place : place + 1]), (tall, wide), twice=task.twice)
    told = {name: column[place] for name, column in (output.told or {}).items()}
    if not {"features", "descriptor"} & set(strategy.needs) or output.features is None:
        return z[0], None, told
    return z[0], output.features[place], told


def _everyones(found: Sequence[tuple[int, Picked]], fabric: Fabric) -> Iterator[tuple[int, Picked]]:
    """Gather the selections of all processes, in image order."""
    empty = torch.zeros(0, dtype=torch.long)
    ones = [p.unit if p.unit is not None else torch.ones_like(p.position) for _, p in found]
    counts = torch.tensor(
        [[image, len(p.position), len(unit)] for (image, p), unit in zip(found, ones, strict=True)]
    )
    counts = gather(counts.reshape(-1, 3).long(), fabric)
    positions = gather(torch.cat([empty, *(p.position for _, p in found)]), fabric)
    units = gather(torch.cat([empty, *ones]), fabric)
    starts = torch.cat([torch.zeros(1, 3, dtype=torch.long), counts.cumsum(0)])
    for number in range(len(counts)):
        (_, position, unit), (_, last, last_unit) = starts[number].tolist(), starts[number + 1].tolist()
        yield int(counts[number, 0]), Picked(positions[position:last], units[unit:last_unit])
