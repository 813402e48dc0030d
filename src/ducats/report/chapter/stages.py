"""Tables of a run's own numbers, stage by stage: what was measured, how sure the model was, what it cost."""

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
    """Titles, and cells as they stand on the page."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Column = tuple[str, Callable[[Record], str]]


def measured(run: Run) -> Table:
    """What was measured at each stage."""
    kept = [m for m in run.kind.measures if m != SECONDS and (not m.optional or _known(run.stages, m))]
    columns: list[Column] = [("Stage", _plain("stage")), ("Epoch", _plain("epoch"))]
    columns += [(measure.title, _as(measure)) for measure in kept]
    return _table(run.stages, columns)


def calibration(run: Run) -> Table:
    """How well confidence fits at each stage, and that of a softmax with a fitted temperature."""
    labels = run.kind.measure("labels")
    stages = [stage for stage in run.stages if number(stage, "ece") is not None]
    columns: list[Column] = [(labels.title, _as(labels))]
    columns += [(measure.title, _as(measure)) for measure in (CALIBRATION, NLL, BRIER, AURC)]
    if any("tempered" in stage for stage in stages):
        columns += [
            ("Temperature", _tempered(lambda one: f"{one['temperature']:.3f}")),
            ("Fitted on labels", _tempered(lambda one: f"{one['labels']:,}")),
        ]
        columns += [
            (f"Tempered: {measure.title}", _tempered(_as(measure))) for measure in (CALIBRATION, NLL, BRIER)
        ]
    return _table(stages, columns)


def costs(run: Run) -> Table:
    """What each stage took: seconds of the machine and of people, and memory."""
    before = {
        id(stage): number(sooner, "seconds") or 0.0
        for sooner, stage in zip([{}, *run.stages], run.stages, strict=False)
    }
    labels = run.kind.measure("labels")
    columns: list[Column] = [
        ("Stage", _plain("stage")),
        (labels.title, _as(labels)),
        ("Seconds so far", _as(SECONDS)),
        ("Seconds of this stage", lambda stage: f"{stage['seconds'] - before[id(stage)]:.1f}"),
    ]
    if any("memory" in stage for stage in run.stages):
        columns.append(("Peak memory MB", _as(Measure("memory", "", 0, 1 / MEGABYTE, 0, grouped=True))))
    if any("people_seconds" in stage for stage in run.stages):
        columns.append(("Minutes of people so far", _as(Measure("people_seconds", "", 0, 1 / 60, 1))))
    return _table(run.stages, columns)


def lacking(run: Run) -> str:
    """What the records do not say about time and memory, in a sentence; empty if they say all."""
    names = []
    if run.epochs and not any(number(epoch, "seconds") is not None for epoch in run.epochs):
        names.append("seconds of each epoch")
    if run.stages and not any("memory" in stage for stage in run.stages):
        names.append("memory")
    return f"Not in the records, which are older: {' and '.join(names)}." if names else ""


def classes(rows: Sequence[ClassRow], found: ByClass) -> Table:
    """Classes before and after, how many of each were measured, and what they are taken for."""
    titles = [f"{found.measure} before %", f"{found.measure} after %", "Change"] if found.several else []
    titles = ["Class", *(titles or [f"{found.measure} %"])]
    if not found.missing:
        titles += ["Measured", "Most often taken for"]
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
    """What each round bought, how much of it the model knew, and how much of it repeats itself."""
    void = any(one.void for one in found)
    some = any(one.bought and one.known + one.void != one.bought for one in found)  # were kept, not all
    titles = ["Round", "After epoch", kind.measure("labels").title]
    titles += [*(["Looked at"] if some else []), "Guessed right", "Right %"]
    titles += ["No class applies"] if void else []
    titles += ["Near-duplicates", "If random"] if kind == IMAGES else ["Beside another %"]
    rows = []
    for one in found:
        cells = [f"{one.number}", f"{one.epoch}", f"{one.bought:,}" if one.bought else "asked"]
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
    return lambda stage: cell(stage["tempered"]) if "tempered" in stage else ABSENT
