"""Score one chunk of a pool."""

import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats import resources
from ducats.criteria import require_features
from ducats.data.views import apply_view, sample_view_params
from ducats.factory import make_views
from ducats.inference import Trained
from ducats.inference.images import COLUMNS, said_of
from ducats.pool import Pool, Sample
from ducats.randomness import make_generator
from ducats.scoring.plan import Plan, scores
from ducats.scoring.reading import decoded, picture_of
from ducats.streaming_top_k import ScoredSamples, StreamingTopK, concat_samples
from ducats.training import placement
from ducats.training.forward import MAX_PENDING_BATCHES, check_finite

Tell = Callable[[int], None]  # called with the number of samples so far


class Result(NamedTuple):
    """Candidates and counts of one chunk."""

    kept: ScoredSamples  # candidates, best first: probability, entropy, u_data, u_dis, guess, first, ...
    known: ScoredSamples  # samples labelled by the run; empty unless the query uses them
    seen: int  # all samples: scored, excluded or unreadable
    excluded: int  # samples labelled by the run
    unreadable: list[tuple[str, str]]  # keys and reasons
    seconds: float
    cpu_seconds: float  # of all threads of this process
    memory: int | None  # peak memory of the process in bytes


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
    """Score chunk ``rank`` of ``world`` and keep its top candidates, in bounded memory.

    A batch is a block of the pool's listing for any number of chunks, and images are decoded and transformed
    as in `ducats predict`: the same image gets bitwise the same numbers.

    Args:
        batch: None: the run's ``engine.scoring_batch_size``.
        threads: number of threads that read and decode.
        exclude: keys of samples that are not candidates.
        on_unreadable: called once for each unreadable sample, with its key and the reason.
        tell: called after each batch with the number of samples so far.
    """
    began, spent = time.perf_counter(), time.process_time()
    keeper, known, unreadable, seen, excluded = (
        StreamingTopK("first", keep.keep),
        list[ScoredSamples](),
        [],
        0,
        0,
    )
    size = batch or trained.config.engine.scoring_batch_size
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
        keeper.top_k(),
        concat_samples(known),
        seen,
        excluded,
        unreadable,
        time.perf_counter() - began,
        time.process_time() - spent,
        resources.peak_memory_bytes(),
    )


class Answer(NamedTuple):
    """Model output of a block, still on the device."""

    key: list[str]
    number: list[int]
    unreadable: list[tuple[str, str]]
    z: Tensor | None  # None if no sample is readable
    features: Tensor | None  # None if the query does not need them


def _said(
    trained: Trained, blocks: Iterator[list[Sample]], keep: Plan, fabric: Fabric, threads: int
) -> Generator[tuple[ScoredSamples, list[tuple[str, str]]], None, None]:
    """Yield the scored samples of each block, and its unreadable samples."""
    model, view, seed = fabric.setup(trained.model), make_views(trained.config).test, trained.config.seed
    model.eval()
    device, waiting = fabric.device, list[Answer]()
    work = partial(picture_of, size=trained.size, channels=trained.channels)
    with closing(decoded(blocks, work, threads)) as stream:
        for block in stream:
            z = features = None
            if block.key:
                # Seeded by block, so random augmentation does not depend on the number of processes.
                luck = sample_view_params(
                    view,
                    len(block.key),
                    *trained.size,
                    make_generator(seed, "scoring", block.number[0]),
                    block.aspect,
                )
                pixels = block.pixels.pin_memory() if device.type == "cuda" else block.pixels
                with torch.inference_mode():
                    output = model(apply_view(placement.to_device(pixels, device), view, luck.to(device)))
                z, features = output.z, require_features(output.features) if keep.features else None
            waiting.append(Answer(block.key, block.number, block.unreadable, z, features))
            if len(waiting) == (1 if device.type == "cpu" else MAX_PENDING_BATCHES):
                yield from (_scored(answer, keep, seed) for answer in waiting)
                waiting = []
    yield from (_scored(answer, keep, seed) for answer in waiting)


@torch.inference_mode()
def _scored(answer: Answer, keep: Plan, seed: int) -> tuple[ScoredSamples, list[tuple[str, str]]]:
    if answer.z is None:
        return concat_samples([]), answer.unreadable
    z = answer.z.float().cpu()
    check_finite(z)
    key, number = np.array(answer.key, object), np.array(answer.number, np.int64)
    said = said_of(z)
    columns = {name: said.numbers[name] for name in COLUMNS}
    columns |= {"guess": said.label.to(torch.int16), **scores(keep, z, torch.from_numpy(number), seed)}
    if answer.features is not None:
        columns |= {"z": z, "features": answer.features.float().flatten(1).cpu()}
    return ScoredSamples(
        key, number, {name: column.numpy() for name, column in columns.items()}
    ), answer.unreadable
