"""Tables of a run section: metrics, calibration and cost by stage, results by class and by round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ducats.figures.numbers import Spread, number
from ducats.records import Record
from ducats.report.chapter.by_class import ByClass, ClassRow
from ducats.report.chapter.rounds import Round
from ducats.report.kinds import AURC, BRIER, CALIBRATION, IMAGES, NLL, SECONDS, Kind, Measure
from ducats.report.read import Run
from ducats.report.tables import paper

ABSENT = "–"
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Table:
    """Column titles and formatted cells."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Column = tuple[str, Callable[[Record], str]]


def measured(run: Run) -> Table:
    """Return the metrics of each stage."""
    kept = [m for m in run.kind.measures if m != SECONDS and (not m.optional or _known(run.stages, m))]
    columns: list[Column] = [("Stage", _plain("stage")), ("Epoch", _plain("epoch"))]
    columns += [(measure.title, _as(measure)) for measure in kept]
    return _table(run.stages, columns)


def calibration(run: Run) -> Table:
    """Return the calibration metrics of each stage, with and without temperature scaling."""
    labels = run.kind.measure("labels")
    stages = [stage for stage in run.stages if number(stage, "ece") is not None]
    columns: list[Column] = [(labels.title, _as(labels))]
    columns += [(measure.title, _as(measure)) for measure in (CALIBRATION, NLL, BRIER, AURC)]
    if any("temperature_scaled" in stage for stage in stages):
        columns += [
            ("Temperature", _tempered(lambda one: f"{one['temperature']:.3f}")),
            ("Fitted on labels", _tempered(lambda one: f"{one['labels']:,}")),
        ]
        columns += [
            (f"Tempered: {measure.title}", _tempered(_as(measure))) for measure in (CALIBRATION, NLL, BRIER)
        ]
    return _table(stages, columns)


def costs(run: Run) -> Table:
    """Return the computing time, annotation time and memory of each stage."""
    before = {
        id(stage): number(sooner, "seconds") or 0.0
        for sooner, stage in zip([{}, *run.stages], run.stages, strict=False)
    }
    labels = run.kind.measure("labels")
    columns: list[Column] = [
        ("Stage", _plain("stage")),
        (labels.title, _as(labels)),
        ("Seconds so far", _as(SECONDS)),
        ("Seconds in this stage", lambda stage: f"{stage['seconds'] - before[id(stage)]:.1f}"),
    ]
    if any("memory" in stage for stage in run.stages):
        columns.append(("Peak memory MB", _as(Measure("memory", "", 0, 1 / MEGABYTE, 0, grouped=True))))
    if any("annotation_seconds" in stage for stage in run.stages):
        columns.append(("Annotation minutes so far", _as(Measure("annotation_seconds", "", 0, 1 / 60, 1))))
    return _table(run.stages, columns)


def lacking(run: Run) -> str:
    """Return a sentence about times and memory that were not recorded; empty if all were."""
    names = []
    if run.epochs and not any(number(epoch, "seconds") is not None for epoch in run.epochs):
        names.append("seconds of each epoch")
    if run.stages and not any("memory" in stage for stage in run.stages):
        names.append("memory")
    return f"This run, made by an older version, did not record: {' and '.join(names)}." if names else ""


def classes(rows: Sequence[ClassRow], found: ByClass) -> Table:
    """Return the results of each class before and after, its count and its most frequent confusion."""
    titles = [f"{found.measure} before %", f"{found.measure} after %", "Change"] if found.several else []
    titles = ["Class", *(titles or [f"{found.measure} %"])]
    if not found.missing:
        titles += ["Evaluated", "Most often confused with"]
    return Table(tuple(titles), tuple(tuple(_class_cells(row, found)) for row in rows))


def _class_cells(row: ClassRow, found: ByClass) -> list[str]:
    cells = [row.name]
    if found.several:
        cells.append(_percent(row.before))
    cells.append(_percent(row.after))
    if found.several:
        cells.append(ABSENT if row.change is None else f"{100 * row.change:+.1f}".replace("-", "−"))
    if not found.missing:
        cells.append(ABSENT if row.count is None else f"{row.count:,}")
        cells.append(f"{row.taken_for} ({row.times:,})" if row.taken_for else ABSENT)
    return cells


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:.1f}"


def rounds(found: Sequence[Round], kind: Kind) -> Table:
    """Return the labels, correct predictions and redundancy of each round."""
    void = any(one.void for one in found)
    some = any(one.bought and one.known + one.void != one.bought for one in found)  # some are in no snapshot
    titles = ["Round", "After epoch", kind.measure("labels").title]
    titles += [*(["In snapshot"] if some else []), "Predicted correctly", "Correct %"]
    titles += ["No class applies"] if void else []
    titles += ["Near-duplicates", "Expected at random"] if kind == IMAGES else ["Near another %"]
    rows = []
    for one in found:
        cells = [f"{one.number}", f"{one.epoch}", f"{one.bought:,}" if one.bought else "pending"]
        cells += [f"{one.known + one.void:,}"] if some else []
        cells.append(f"{one.right:,}")
        cells.append(f"{100 * one.right / one.known:.0f}" if one.known else ABSENT)
        cells += [f"{one.void:,}"] if void else []
        if kind != IMAGES:
            cells.append(ABSENT if one.near is None else f"{100 * one.near:.0f}")
        elif one.alike is None:
            cells += [ABSENT, ABSENT]
        else:
            cells += [f"{len(one.alike.pairs):,}", f"{one.alike.expected:.1f}"]
        rows.append(tuple(cells))
    return Table(tuple(titles), tuple(rows))


def _table(stages: Sequence[Record], columns: Sequence[Column]) -> Table:
    rows = tuple(tuple(cell(stage) for _, cell in columns) for stage in stages)
    return Table(tuple(title for title, _ in columns), rows)


def _known(stages: Sequence[Record], measure: Measure) -> bool:
    values = [number(stage, measure.key) for stage in stages]
    others = [number(stage, measure.unlike) for stage in stages]
    return any(value is not None and value != other for value, other in zip(values, others, strict=True))


def _plain(key: str) -> Callable[[Record], str]:
    return lambda stage: str(stage[key])


def _as(measure: Measure) -> Callable[[Record], str]:
    def cell(stage: Record) -> str:
        value = number(stage, measure.key)
        return paper(None if value is None else Spread(value, None), measure)

    return cell


def _tempered(cell: Callable[[Record], str]) -> Callable[[Record], str]:
    return lambda stage: cell(stage["temperature_scaled"]) if "temperature_scaled" in stage else ABSENT
