"""Read-only view of a run for figures: snapshots, class names, text helpers."""

from collections.abc import Sequence

from ducats.report.run_reader import Run
from ducats.runfolder import snapshot_files
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

VOID_LABEL = -2  # annotated as void: no class applies
RunSequence = Sequence[Run]


def require_one_run(runs: RunSequence, figure: str) -> Run:
    """Return the only run; raise if there is not exactly one."""
    if len(runs) != 1:
        raise UserError(f"`ducats figure {figure}` shows one run, not {len(runs)}; give one run folder")
    return runs[0]


def require_snapshots(run: Run) -> list[Snapshot]:
    """Load all readable snapshots of a run; raise if there are none."""
    readable, problems = snapshot_files.load_readable_snapshots(run.folder)
    if problems and not readable:
        raise UserError(problems[0])
    if not readable and not run.finished and not run.stages:
        raise UserError(
            f"{run.folder} has not reached its first round yet, so there is nothing to draw; run the same "
            "command again to resume it"
        )
    if not readable:
        raise UserError(
            f"{run.folder} has no snapshots: it ran with engine.snapshot_samples=0; run it again in a "
            "new folder (--out) to draw this figure"
        )
    return readable


def require_round_snapshots(run: Run, round_number: int | None = None) -> list[Snapshot]:
    """Load the snapshots of all rounds, or of one round; raise if there are none."""
    round_snapshots = [snapshot for snapshot in require_snapshots(run) if snapshot.round]
    if not round_snapshots:
        raise UserError(f"{run.folder} has no round, so nothing was selected; use a run with a label budget")
    return round_snapshots if round_number is None else [_find_round(round_snapshots, round_number, run)]


def snapshot_of_round_or_first(run: Run, round_number: int | None) -> Snapshot:
    """Load the snapshot of a round, or the first snapshot."""
    all_snapshots = require_snapshots(run)
    return all_snapshots[0] if round_number is None else _find_round(all_snapshots, round_number, run)


def _find_round(candidates: Sequence[Snapshot], round_number: int, run: Run) -> Snapshot:
    for snapshot in candidates:
        if snapshot.round == round_number and round_number:
            return snapshot
    available = ", ".join(str(snapshot.round) for snapshot in candidates if snapshot.round) or "none"
    raise UserError(f"{run.folder} has no snapshot of --round {round_number}; available rounds: {available}")


def describe_time(snapshot: Snapshot) -> str:
    """Describe the time of a snapshot."""
    return f"round {snapshot.round}" if snapshot.round else "at the end"


def is_segmentation(run: Run) -> bool:
    """Return whether the run labels pixels (segmentation)."""
    return run.kind.headline_metric == "mean_iou"


def format_sample_count(count: int, run: Run) -> str:
    """Format a number of images or pixels."""
    return pluralise(count, "pixel" if is_segmentation(run) else "image", f"{count:,}")


def shorten_start(text: str, max_length: int = 24) -> str:
    """Shorten a name at its start; the end of a path is more informative.

    >>> shorten_start("target/0001"), shorten_start("a/very/long/path/to/some/image/0001.png", 12)
    ('target/0001', '…ge/0001.png')
    """
    text = " ".join(text.split())
    return text if len(text) <= max_length else f"…{text[1 - max_length :]}"
