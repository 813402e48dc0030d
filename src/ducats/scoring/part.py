"""One part of a pool passes by a model."""

import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats import room
from ducats.assemble import make_views
from ducats.criteria import given
from ducats.data.views import draw, look
from ducats.engine import resident
from ducats.engine.forward import HELD, check_finite
from ducats.inference import Trained
from ducats.inference.images import COLUMNS, said_of
from ducats.pool import Pool, Sample
from ducats.randomness import fork
from ducats.scoring.plan import Plan, scores
from ducats.scoring.reading import decoded, picture_of
from ducats.selection import Keeper, Scored, joined

Tell = Callable[[int], None]  # how many samples were looked at so far


class Result(NamedTuple):
    """What is left of a part."""

    kept: Scored  # the best, best first: probability, entropy, u_data, u_dis, guess, first, and so on
    known: Scored  # rows whose labels were bought already, if the query looks at these
    seen: int  # samples in all: scored, excluded, or unreadable
    excluded: int  # because their labels were bought
    unreadable: list[tuple[str, str]]  # keys, and why
    seconds: float
    cpu_seconds: float  # of all threads of the process
    memory: int | None  # bytes that the process held at most


def score_part(
    trained: Trained,
    pool: Pool,
    rank: int,
    world: int,
    *,
    keep: Plan,
    fabric: Fabric,
    batch: int | None = None,
    threads: int = 1,
    exclude: Collection[str] = frozenset(),
    on_unreadable: Callable[[str, str], None] | None = None,
    tell: Tell | None = None,
) -> Result:
    """Score one of ``world`` parts of a pool and keep its best; in bounded memory, whatever the pool's size.

    A batch is a block of the pool's listing, whatever the number of parts, and images are decoded and looked
    at as `ducats predict` does it: the same image gets the same numbers, bit by bit.

    Args:
        trained: the model.
        pool: what to look at.
        rank: which part.
        world: of how many.
        keep: what to keep.
        fabric: device.
        batch: images at a time; None: as many as the run's ``engine.scoring_batch``.
        threads: that read and decode.
        exclude: keys of samples that are no candidates.
        on_unreadable: called with the key of a sample that cannot be read, and why, once.
        tell: called after each batch with the number of samples so far.
    """
    began, spent = time.perf_counter(), time.process_time()
    keeper, known, unreadable, seen, excluded = Keeper("first", keep.keep), list[Scored](), [], 0, 0
    size = batch or trained.config.engine.scoring_batch
    stream = _said(trained, pool.blocks(rank, world, size), keep, fabric, threads)
    with closing(stream):
        for some, failed in stream:
            for key, why in failed:
                unreadable.append((key, why))
                if on_unreadable is not None:
                    on_unreadable(key, why)
            seen += len(some) + len(failed)
            if exclude:
                bought = np.fromiter((key in exclude for key in some.key), bool, len(some))
                excluded += int(bought.sum())
                if keep.features and bought.any():
                    known.append(some[bought])
                some = some[~bought]
            keeper.add(some)
            if tell is not None:
                tell(seen)
    return Result(
        keeper.best(),
        joined(known),
        seen,
        excluded,
        unreadable,
        time.perf_counter() - began,
        time.process_time() - spent,
        room.most_memory(),
    )


class Answer(NamedTuple):
    """What the model says of a block, still on the device."""

    key: list[str]
    number: list[int]
    unreadable: list[tuple[str, str]]
    z: Tensor | None  # None if no sample could be read
    features: Tensor | None  # None if nobody wants them


def _said(
    trained: Trained, blocks: Iterator[list[Sample]], keep: Plan, fabric: Fabric, threads: int
) -> Generator[tuple[Scored, list[tuple[str, str]]], None, None]:
    """What the model says of each block, and which of its samples cannot be read."""
    model, view, seed = fabric.setup(trained.model), make_views(trained.config).test, trained.config.seed
    model.eval()
    device, waiting = fabric.device, list[Answer]()
    work = partial(picture_of, size=trained.size, channels=trained.channels)
    with closing(decoded(blocks, work, threads)) as stream:
        for block in stream:
            z = features = None
            if block.key:
                # What a view leaves to chance is drawn for each block: alike on any number of processes.
                luck = draw(
                    view,
                    len(block.key),
                    *trained.size,
                    fork(seed, "scoring", block.number[0]),
                    block.aspect,
                )
                pixels = block.pixels.pin_memory() if device.type == "cuda" else block.pixels
                with torch.inference_mode():
                    output = model(look(resident.send(pixels, device), view, luck.to(device)))
                z, features = output.z, given(output.features) if keep.features else None
            waiting.append(Answer(block.key, block.number, block.unreadable, z, features))
            if len(waiting) == (1 if device.type == "cpu" else HELD):
                yield from (_scored(answer, keep, seed) for answer in waiting)
                waiting = []
    yield from (_scored(answer, keep, seed) for answer in waiting)


@torch.inference_mode()
def _scored(answer: Answer, keep: Plan, seed: int) -> tuple[Scored, list[tuple[str, str]]]:
    if answer.z is None:
        return joined([]), answer.unreadable
    z = answer.z.float().cpu()
    check_finite(z)
    key, number = np.array(answer.key, object), np.array(answer.number, np.int64)
    said = said_of(z)
    columns = {name: said.numbers[name] for name in COLUMNS}
    columns |= {"guess": said.label.to(torch.int16), **scores(keep, z, torch.from_numpy(number), seed)}
    if answer.features is not None:
        columns |= {"z": z, "features": answer.features.float().flatten(1).cpu()}
    return Scored(key, number, {name: column.numpy() for name, column in columns.items()}), answer.unreadable
