"""Files of an output folder: settings, one file per finished chunk, and the results. Merging of chunks.

Every write is atomic, and a chunk whose file exists is not scored again. Scoring can therefore be killed at
any time; run the same command again to resume.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ducats.acquisition.streaming_top_k import ScoredSamples, concat_samples, merge_top_k
from ducats.deploy.scoring.chunk import ChunkResult
from ducats.runfolder.run_folder import settings_differences
from ducats.utils import npz_columns
from ducats.utils.errors import UserError
from ducats.utils.files import folder_lock, make_folder, write_text_atomically

_Array = NDArray[Any]
SETTINGS_FILE, CHUNKS_FOLDER = "settings.json", "chunks"
PICKS_FILE, UNREADABLE_FILE, SUMMARY_FILE = RESULT_FILES = "picks.csv", "unreadable.csv", "score.json"


def chunk_file(out: Path, chunk: int, n_chunks: int) -> Path:
    """Return the file of a chunk."""
    return out / CHUNKS_FOLDER / f"chunk-{chunk}-of-{n_chunks}.npz"


@contextmanager
def open_output_folder(out: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Create or resume and lock an output folder; raise if it was made with other settings."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose a folder with --out")
    make_folder(out)
    with folder_lock(out) as acquired:
        if not acquired:
            raise UserError(f"another process is scoring into {out}; wait for it or stop it")
        for folder in (out, out / CHUNKS_FOLDER):
            for temporary in folder.glob(".*.part"):  # left by a killed process
                temporary.unlink(missing_ok=True)
        path, current = out / SETTINGS_FILE, json.loads(json.dumps(settings))
        changed = settings_differences(_load_settings(path) if path.exists() else current, current)
        if changed and any((out / CHUNKS_FOLDER).glob("*")):
            raise UserError(
                f"{out} was made with other settings ({'; '.join(changed[:4])}); choose another folder with "
                "--out, or restore these settings to resume"
            )
        for name in RESULT_FILES if changed else ():
            (out / name).unlink(missing_ok=True)
        write_text_atomically(path, json.dumps(current, indent=1, ensure_ascii=False) + "\n")
        yield


def _load_settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise UserError(f"{path} is corrupt or not from ducats; choose another folder with --out") from None


def save_chunk(path: Path, result: ChunkResult) -> None:
    """Write the result of a chunk atomically."""
    metadata = result._asdict()
    tables: dict[str, ScoredSamples] = {name: metadata.pop(name) for name in ("candidates", "labelled")}
    arrays: dict[str, _Array] = {"metadata": np.frombuffer(json.dumps(metadata).encode("utf-8"), np.uint8)}
    for name, samples in tables.items():
        keys = [key.encode("utf-8") for key in samples.key]
        arrays[f"{name}.keys"] = np.frombuffer(b"".join(keys), np.uint8)
        arrays[f"{name}.lengths"] = np.array([len(key) for key in keys], np.int64)
        arrays[f"{name}.pool_index"] = samples.pool_index
        arrays |= {f"{name}:{column}": values for column, values in samples.columns.items()}
    npz_columns.write_columns(path, {name: (values, values.dtype) for name, values in arrays.items()})


def load_chunk(path: Path) -> ChunkResult | None:
    """Load the result of a chunk; None if its file is missing or corrupt."""
    try:
        arrays = npz_columns.read_columns(path, ())
        metadata = json.loads(arrays["metadata"].tobytes())
        metadata["unreadable"] = [(key, reason) for key, reason in metadata["unreadable"]]
        candidates, labelled = (_load_samples(arrays, name) for name in ("candidates", "labelled"))
        return ChunkResult(candidates, labelled, **metadata)
    except (*npz_columns.READ_ERRORS, TypeError):
        return None


def _load_samples(arrays: Mapping[str, _Array], name: str) -> ScoredSamples:
    key_bytes, keys, start = arrays[f"{name}.keys"].tobytes(), [], 0
    for length in arrays[f"{name}.lengths"].tolist():
        keys.append(key_bytes[start : start + length].decode("utf-8"))
        start += length
    key = np.empty(len(keys), object)
    key[:] = keys
    values = {
        column.removeprefix(f"{name}:"): array
        for column, array in arrays.items()
        if column.startswith(f"{name}:")
    }
    return ScoredSamples(key, arrays[f"{name}.pool_index"], values)


class MergedChunks(NamedTuple):
    """Top candidates of all chunks, and the counts of each chunk."""

    candidates: ScoredSamples  # best first
    labelled: ScoredSamples  # samples labelled by the run; empty unless the query uses them
    unreadable: list[tuple[str, str]]  # keys and reasons, sorted by key
    chunks: list[ChunkResult]  # counts, times and memory only; their tables are empty
    n_samples: int  # a truncated shard that several chunks report counts once

    @property
    def n_excluded(self) -> int:
        """Number of samples labelled by the run."""
        return sum(chunk.n_excluded for chunk in self.chunks)


def missing_chunks(files: Sequence[Path]) -> list[int]:
    """Return the indices of chunks whose file is missing or corrupt."""
    return [chunk for chunk, path in enumerate(files) if load_chunk(path) is None]


def merge_chunks(files: Sequence[Path], n_candidates: int) -> MergedChunks:
    """Merge all chunks and keep the top candidates; only these and one chunk are in memory at a time.

    Raises:
        UserError: A chunk cannot be read, or two chunks have scored the same sample.
    """
    chunks, labelled, unreadable, n_readable = list[ChunkResult](), list[ScoredSamples](), dict[str, str](), 0

    def tables() -> Iterator[ScoredSamples]:
        nonlocal n_readable
        for path in files:
            result = load_chunk(path)
            if result is None:
                raise UserError(f"{path} is corrupt; delete it and run the same command again")
            labelled.append(result.labelled)
            unreadable.update(result.unreadable)
            n_readable += result.n_samples - len(result.unreadable)
            empty = concat_samples([])
            chunks.append(result._replace(candidates=empty, labelled=empty, unreadable=[]))
            yield result.candidates

    candidates = merge_top_k(tables(), "first", n_candidates)
    n_samples = n_readable + len(unreadable)
    return MergedChunks(candidates, concat_samples(labelled), sorted(unreadable.items()), chunks, n_samples)
