"""Score one chunk of a pool."""

import time
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats.acquisition.criteria import require_features
from ducats.acquisition.streaming_top_k import ScoredSamples, StreamingTopK, concat_samples
from ducats.data.streaming import Pool, PoolSample
from ducats.data.views import apply_view, sample_view_params
from ducats.deploy import TrainedModel
from ducats.deploy.classification import PREDICTION_COLUMNS, from_log_alpha
from ducats.deploy.scoring.reader import decode_blocks, decode_sample
from ducats.deploy.scoring.streaming_query import StreamingQuery, compute_scores
from ducats.training import placement
from ducats.training.predictor import MAX_PENDING_BATCHES, check_finite
from ducats.utils import resources
from ducats.utils.randomness import make_generator

ProgressCallback = Callable[[int], None]  # called with the number of samples so far


class ChunkResult(NamedTuple):
    """Candidates and counts of one chunk."""

    candidates: ScoredSamples  # best first; columns probability, entropy, u_data, u_dis, guess, first, ...
    labelled: ScoredSamples  # samples labelled by the run; empty unless the query uses them
    n_samples: int  # all samples: scored, excluded or unreadable
    n_excluded: int  # samples labelled by the run
    unreadable: list[tuple[str, str]]  # keys and reasons
    seconds: float
    cpu_seconds: float  # of all threads of this process
    peak_memory_bytes: int | None  # of the process


def score_chunk(
    trained: TrainedModel,
    pool: Pool,
    chunk: int,
    n_chunks: int,
    *,
    streaming_query: StreamingQuery,
    fabric: Fabric,
    batch_size: int | None = None,
    threads: int = 1,
    excluded_keys: Collection[str] = frozenset(),
    on_progress: ProgressCallback | None = None,
) -> ChunkResult:
    """Score chunk ``chunk`` of ``n_chunks`` and keep its top candidates, in bounded memory.

    A batch is a block of the pool's listing for any number of chunks, and images are decoded and transformed
    as in `ducats predict`: the same image gets bitwise the same numbers.

    Args:
        batch_size: None: the run's ``engine.scoring_batch_size``.
        threads: number of threads that read and decode.
        excluded_keys: keys of samples that are not candidates.
        on_progress: called after each batch with the number of samples so far.
    """
    start, cpu_start = time.perf_counter(), time.process_time()
    selector = StreamingTopK("first", streaming_query.n_candidates)
    labelled, unreadable = list[ScoredSamples](), list[tuple[str, str]]()
    n_samples = n_excluded = 0
    blocks = pool.blocks(chunk, n_chunks, batch_size or trained.config.engine.scoring_batch_size)
    with closing(_score_blocks(trained, blocks, streaming_query, fabric, threads)) as stream:
        for samples, failed in stream:
            unreadable += failed
            n_samples += len(samples) + len(failed)
            if excluded_keys:
                is_labelled = np.fromiter((key in excluded_keys for key in samples.key), bool, len(samples))
                n_excluded += int(is_labelled.sum())
                if streaming_query.selects and is_labelled.any():
                    labelled.append(samples[is_labelled])
                samples = samples[~is_labelled]
            selector.add(samples)
            if on_progress is not None:
                on_progress(n_samples)
    return ChunkResult(
        selector.top_k(),
        concat_samples(labelled),
        n_samples,
        n_excluded,
        unreadable,
        time.perf_counter() - start,
        time.process_time() - cpu_start,
        resources.peak_memory_bytes(),
    )


class _BlockOutput(NamedTuple):
    """Model output of a block, still on the device."""

    key: list[str]
    pool_index: list[int]
    unreadable: list[tuple[str, str]]
    z: Tensor | None  # None if no sample is readable
    features: Tensor | None  # None if the query does not need them


def _score_blocks(
    trained: TrainedModel,
    blocks: Iterable[Iterable[PoolSample]],
    streaming_query: StreamingQuery,
    fabric: Fabric,
    threads: int,
) -> Generator[tuple[ScoredSamples, list[tuple[str, str]]], None, None]:
    """Yield the scored samples of each block, and its unreadable samples."""
    model, view, seed = fabric.setup(trained.model), trained.config.views.test, trained.config.seed
    model.eval()
    query = streaming_query.spec if streaming_query.selects else None
    needs_features = query is not None and "features" in query.needs
    device, pending = fabric.device, list[_BlockOutput]()
    embedder = trained.embedder(fabric)
    decode = partial(
        decode_sample,
        size=trained.size,
        channels=trained.channels,
        value_range=trained.value_range,
        interpolation=view.interpolation,
    )
    with closing(decode_blocks(blocks, decode, threads)) as stream:
        for block in stream:
            z = features = None
            if block.key:
                with torch.inference_mode():
                    if embedder is None:
                        # Seeded by block, so random augmentation does not depend on the number of processes.
                        generator = make_generator(seed, "scoring", block.pool_index[0])
                        aug_params = sample_view_params(
                            view, len(block.key), *trained.size, generator, block.aspect
                        )
                        pixels = block.pixels.pin_memory() if device.type == "cuda" else block.pixels
                        pixels = placement.to_device(pixels, device)
                        inputs = apply_view(pixels, view, aug_params.to(device))
                    else:
                        inputs = embedder.embed_first_view(block.pixels, block.aspect).to(device)
                    output = model(inputs)
                z, features = output.z, output.features if needs_features else None
                if query and "features" in query.for_model(has_features=features is not None).needs:
                    require_features(features)
            pending.append(_BlockOutput(block.key, block.pool_index, block.unreadable, z, features))
            if len(pending) == (1 if device.type == "cpu" else MAX_PENDING_BATCHES):
                yield from (_to_samples(block_output, streaming_query, seed) for block_output in pending)
                pending = []
    yield from (_to_samples(block_output, streaming_query, seed) for block_output in pending)


@torch.inference_mode()
def _to_samples(
    block_output: _BlockOutput, streaming_query: StreamingQuery, seed: int
) -> tuple[ScoredSamples, list[tuple[str, str]]]:
    if block_output.z is None:
        return concat_samples([]), block_output.unreadable
    z = block_output.z.float().cpu()
    check_finite(z)
    key, pool_index = np.array(block_output.key, object), np.array(block_output.pool_index, np.int64)
    predictions = from_log_alpha(z)
    columns = {name: predictions.columns[name] for name in PREDICTION_COLUMNS}
    columns |= {
        "guess": predictions.label.to(torch.int16),
        **compute_scores(streaming_query, z, torch.from_numpy(pool_index), seed),
    }
    if streaming_query.selects:
        columns["z"] = z
    if block_output.features is not None:
        columns["features"] = block_output.features.float().flatten(1).cpu()
    arrays = {name: column.numpy() for name, column in columns.items()}
    return ScoredSamples(key, pool_index, arrays), block_output.unreadable
