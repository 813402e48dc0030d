"""Tables of methods by tasks, one per data set, built from run folders."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ducats.report.across.choosing import ONE_SEED, choose
from ducats.report.across.paired import Paired, paired
from ducats.report.across.published import Published, published
from ducats.report.kinds import Kind, Measure
from ducats.report.provenance import cautions, measured_on
from ducats.report.read import Run, find_runs, number
from ducats.report.tables import Spread
from ducats.report.tables import methods as methods_of
from ducats.report.tasks import column_of, task_of

CEILING = "fully-supervised"  # upper bound with all labels; never marked as the best method
FIRST = (  # row order of the paper's tables
    *("source-only", "edl", "edl-random", "edl-entropy", "mrkld", "seg-uncertainty", "tpld", "proda"),
    *("random", "margin", "least_confident", "entropy", "coreset", "waal", "badge", "aada", "dbal", "tqs"),
    *("clue", "eada", "aada-seg", "mada", "eada-seg"),
)
Column = tuple[str, str]  # task, key of the measure
Place = tuple[str, int]  # task, seed


@dataclass(frozen=True)
class Row:
    """Results of one method over tasks and seeds.

    Args:
        values: by task and measure; tasks without a run of the method are missing.
        average: mean over the tasks, by measure; missing if a task is missing.
        seeds: all seeds of the method's runs.
        labels: labels spent per run, mean over the runs.
        seconds: seconds per run, mean over the runs.
        memory: peak memory per run in bytes, mean over the runs; None if a run did not record it.
        scores: ranking measure by task and seed; runs with the same task and seed are averaged.
        published: published results of the method, by measure.
        unlike: settings in which our runs differ from the published ones.
        against: paired test on the same tasks and seeds, by name of the other method.
    """

    method: str
    values: Mapping[Column, Spread]
    average: Mapping[str, Spread]
    seeds: tuple[int, ...]
    labels: float
    seconds: float
    memory: float | None
    scores: Mapping[Place, float]
    published: Mapping[str, Published]
    unlike: tuple[str, ...]
    against: Mapping[str, Paired | None]


@dataclass(frozen=True)
class Table:
    """Table of methods by tasks of one data set.

    Args:
        data: name of the data set.
        kind: classification or segmentation.
        measures: the first one ranks the methods.
        tasks: one empty name if the data has no tasks.
        rows: methods in the order of the paper's tables, then others, then the fully supervised ones.
        runs: the runs in the table.
        others: the methods that all rows are compared with.
        notes: notes for the reader, printed below the table.
    """

    data: str
    kind: Kind
    measures: tuple[Measure, ...]
    tasks: tuple[str, ...]
    rows: tuple[Row, ...]
    runs: tuple[Run, ...]
    others: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def columns(self) -> list[Column]:
        """All pairs of task and measure, in order."""
        return [(task, measure.key) for task in self.tasks for measure in self.measures]

    def best(self, values: Mapping[str, Spread]) -> set[str]:
        """Return the methods with the highest rounded mean; fully supervised methods do not count.

        Args:
            values: results of one column, by method.
        """
        means = {name: round(100 * value.mean, 1) for name, value in values.items() if CEILING not in name}
        return {name for name, mean in means.items() if len(means) > 1 and mean == max(means.values())}


def make_tables(paths: Sequence[Path], others: Sequence[str] = ("random", "duc")) -> list[Table]:
    """Return a table for each data set among the runs at or below the paths.

    Tuning trials count only if their folder is given.

    Args:
        paths: run folders, or folders that contain them.
        others: methods to compare all others with; ignored in tables that lack them.
    """
    return tables_of(find_runs(paths), others, paths)


def tables_of(runs: Sequence[Run], others: Sequence[str], named: Sequence[Path] = ()) -> list[Table]:
    """Return a table for each data set among the runs.

    Args:
        others: methods to compare all others with; ignored in tables that lack them.
        named: folders given by the user; tuning trials count only in these.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((column_of(run.config)[0], run.kind.headline), []).append(run)
    folders = {path.resolve() for path in named}
    return [_table(data, group, others, folders) for (data, _), group in groups.items()]


def _table(data: str, runs: Sequence[Run], others: Sequence[str], named: Collection[Path]) -> Table:
    counted, left_out = choose(runs, named)
    tasks = tuple(dict.fromkeys(task_of(run) for run in counted))
    kind = runs[0].kind
    keys = (kind.headline, *(("mean_iou_star",) if kind.headline == "mean_iou" else ()))
    measures = tuple(
        kind.measure(key) for key in keys if any(number(run.stages[-1], key) is not None for run in counted)
    )
    names = sorted(methods_of(counted), key=_place)
    scores = {name: _by_seed(counted, name, kind.headline) for name in names}
    compared = tuple(name for name in others if name in names)
    rows = []
    for name in names:
        against = {other: paired(scores[name], scores[other]) for other in compared if other != name}
        of_method = [run for run in counted if run.method == name]
        rows.append(_row(data, name, of_method, tasks, measures, scores[name], against))
    notes = _notes(counted, left_out, rows)
    return Table(data, kind, measures, tasks, tuple(rows), tuple(counted), compared, tuple(notes))


def _place(method: str) -> tuple[bool, int, list[tuple[int, str]]]:
    """Return the sort key of a method; numbers in names sort as numbers: kappa-5 before kappa-10."""
    words = re.split(r"(\d+)", method)
    known = FIRST.index(method) if method in FIRST else len(FIRST)
    return CEILING in method, known, [(int(word) if word.isdecimal() else -1, word) for word in words]


def _row(
    data: str,
    method: str,
    runs: Sequence[Run],
    tasks: Sequence[str],
    measures: Sequence[Measure],
    scores: Mapping[Place, float],
    against: Mapping[str, Paired | None],
) -> Row:
    values: dict[Column, Spread] = {}
    average: dict[str, Spread] = {}
    for measure in measures:
        found = _by_seed(runs, method, measure.key)
        for task in tasks:
            if there := [score for (where, _), score in found.items() if where == task]:
                values[task, measure.key] = Spread.of(there)
        if mean := _average(found, tasks):
            average[measure.key] = mean
    entries = {m.key: entry for m in measures if (entry := published().get((data, m.key, method)))}
    known = {key: entry for key, entry in entries.items() if entry.says(tasks)}
    taken = [max((number(stage, "memory") or 0.0 for stage in run.stages), default=0.0) for run in runs]
    return Row(
        method=method,
        values=values,
        average=average,
        seeds=tuple(sorted({run.seed for run in runs})),
        labels=fmean(run.stages[-1]["labels"] for run in runs),
        seconds=fmean(run.stages[-1]["seconds"] for run in runs),
        memory=fmean(taken) if all(taken) else None,
        scores=scores,
        published=known,
        unlike=tuple(dict.fromkeys(key for e in known.values() for run in runs for key in e.unlike(run))),
        against=against,
    )


def _by_seed(runs: Sequence[Run], method: str, key: str) -> dict[Place, float]:
    """Return the final values of a method by task and seed; runs with the same task and seed are averaged."""
    found: dict[Place, list[float]] = {}
    for run in runs:
        value = number(run.stages[-1], key)
        if run.method == method and value is not None:
            found.setdefault((task_of(run), run.seed), []).append(value)
    return {place: fmean(values) for place, values in found.items()}


def _average(found: Mapping[Place, float], tasks: Sequence[str]) -> Spread | None:
    """Return mean over tasks and deviation over the seeds that ran all tasks; None if a task has no run."""
    each = [[score for (where, _), score in found.items() if where == task] for task in tasks]
    if not all(each):
        return None
    seeds = {seed for _, seed in found}
    whole = [s for s in seeds if all((task, s) in found for task in tasks)]
    over_seeds = [fmean(found[task, seed] for task in tasks) for seed in sorted(whole)]
    deviation = Spread.of(over_seeds).deviation if over_seeds else None
    return Spread(fmean(fmean(scores) for scores in each), deviation)


def _notes(counted: Sequence[Run], left_out: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return the notes of a table, without duplicates."""
    notes = [measured_on(counted), *left_out]
    for task in dict.fromkeys(task_of(run) for run in counted):
        there = [run for run in counted if task_of(run) == task]
        notes += cautions(there, several=ONE_SEED)
    notes += dict.fromkeys(f"Published: {e.origin}." for row in rows for e in row.published.values())
    unlike: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.unlike:
            unlike.setdefault(row.unlike, []).append(row.method)
    notes += [
        f"Settings unlike the published ones (†) in our runs of {', '.join(names)}: {', '.join(settings)}."
        for settings, names in unlike.items()
    ]
    return list(dict.fromkeys(note for note in notes if note))
