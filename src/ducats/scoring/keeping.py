"""Files of an output folder: settings, one file per finished chunk, and the results.

Every write is atomic, and a chunk whose file exists is not scored again. Scoring can therefore be killed at
any time; run the same command again to resume.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ducats import npz_columns
from ducats.errors import UserError
from ducats.files import folder_lock, write_text_atomically
from ducats.run_folder import settings_differences
from ducats.scoring.part import Result
from ducats.streaming_top_k import ScoredSamples

Array = NDArray[Any]
SETTINGS, PARTS = "settings.json", "parts"
PICKS, UNREADABLE, SUMMARY = RESULTS = "picks.csv", "unreadable.csv", "score.json"


def part_file(out: Path, rank: int, world: int) -> Path:
    """Return the file of a chunk."""
    return out / PARTS / f"part-{rank}-of-{world}.npz"


@contextmanager
def hold(out: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Create or resume and lock an output folder; raise if it was made with other settings."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose a folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out) as alone:
        if not alone:
            raise UserError(f"another process is scoring into {out}; wait for it or stop it")
        for draft in (*out.glob(".*.part"), *(out / PARTS).glob(".*.part")):  # left by a killed process
            draft.unlink(missing_ok=True)
        path, now = out / SETTINGS, json.loads(json.dumps(settings))
        changed = settings_differences(_settings(path) if path.exists() else now, now)
        if changed and any((out / PARTS).glob("*")):
            raise UserError(
                f"{out} was made with other settings ({'; '.join(changed[:4])}); choose another folder with "
                "--out, or restore these settings to resume"
            )
        for name in RESULTS if changed else ():
            (out / name).unlink(missing_ok=True)
        write_text_atomically(path, json.dumps(now, indent=1, ensure_ascii=False) + "\n")
        yield


def _settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise UserError(f"{path} is corrupt or not from ducats; choose another folder with --out") from None


def keep_part(path: Path, result: Result) -> None:
    """Write the result of a chunk atomically."""
    about = {
        "seen": result.seen,
        "excluded": result.excluded,
        "seconds": result.seconds,
        "cpu_seconds": result.cpu_seconds,
        "memory": result.memory,
        "unreadable": result.unreadable,
    }
    put: dict[str, Array] = {"about": _bytes(json.dumps(about))}
    for name, some in (("kept", result.kept), ("known", result.known)):
        keys = [key.encode("utf-8") for key in some.key]
        put[f"{name}.keys"] = np.frombuffer(b"".join(keys), np.uint8)
        put[f"{name}.lengths"] = np.array([len(key) for key in keys], np.int64)
        put[f"{name}.number"] = some.pool_index
        put |= {f"{name}:{column}": values for column, values in some.columns.items()}
    npz_columns.write_columns(path, {name: (values, values.dtype) for name, values in put.items()})


def load_part(path: Path) -> Result | None:
    """Load the result of a chunk; None if its file is missing or corrupt."""
    try:
        found = npz_columns.read_columns(path, ())
        about = json.loads(found["about"].tobytes())
        kept, known = _scored(found, "kept"), _scored(found, "known")
        return Result(
            kept,
            known,
            about["seen"],
            about["excluded"],
            [(key, why) for key, why in about["unreadable"]],
            about["seconds"],
            about["cpu_seconds"],
            about["memory"],
        )
    except npz_columns.READ_ERRORS:
        return None


def _scored(found: Mapping[str, Array], name: str) -> ScoredSamples:
    whole, keys, start = found[f"{name}.keys"].tobytes(), [], 0
    for length in found[f"{name}.lengths"].tolist():
        keys.append(whole[start : start + length].decode("utf-8"))
        start += length
    key = np.empty(len(keys), object)
    key[:] = keys
    values = {
        column.removeprefix(f"{name}:"): array
        for column, array in found.items()
        if column.startswith(f"{name}:")
    }
    return ScoredSamples(key, found[f"{name}.number"], values)


def _bytes(text: str) -> Array:
    return np.frombuffer(text.encode("utf-8"), np.uint8)
