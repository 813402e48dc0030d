"""The first screen of a page: what was gained, the curve, the cost, and what to do next."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ducats.report.comparison.build import Comparison
from ducats.report.comparison.ranks import best_method
from ducats.report.figures.curves import CaptionedFigure
from ducats.report.figures.style import LineStyle
from ducats.report.headline import Headline
from ducats.report.method_results import MethodRow, aggregate_methods, counted_runs
from ducats.report.next_steps import NextStep, steps_after_comparison, steps_after_run, steps_after_sweep
from ducats.report.overview import Overview
from ducats.report.provenance import describe_evaluation
from ducats.report.run_kinds import RunKind
from ducats.report.run_reader import Run
from ducats.report.run_section.section import RunSection
from ducats.report.run_section.verdict import KeyFigure
from ducats.runfolder.records import describe_timed, finite_number
from ducats.utils.findings import format_duration, pluralise

_T = TypeVar("_T")


@dataclass(frozen=True)
class Summary:
    """The first screen."""

    headline: Headline  # its remarks are shown further down
    context: str = ""  # what the result is compared with and evaluated on; may be empty
    curve: CaptionedFigure | None = None
    line_styles: Mapping[str, LineStyle] = field(default_factory=dict)  # legend of the curve
    costs: tuple[KeyFigure, ...] = ()
    next_steps: tuple[NextStep, ...] = ()


def summarise_run(section: RunSection) -> Summary:
    """Summarise the only run of a page."""
    run, verdict = section.run, section.verdict
    return Summary(
        Headline(verdict.sentence, verdict.remarks),
        verdict.context,
        section.learning_curves[0] if section.learning_curves else None,
        section.line_styles if len(section.line_styles) > 1 else {},
        (_label_cost([run]), *_time_costs([run])),
        steps_after_run(run, verdict, section.class_results, f"{section.id_prefix}classes"),
    )


def summarise_methods(
    runs: Sequence[Run], headline: Headline, overview: Overview, *, shares_answers: bool
) -> Summary:
    """Summarise several runs on one task; the labels are those of the best method.

    Args:
        shares_answers: whether runs have answers of annotators in common.
    """
    rows = aggregate_methods(runs)
    best = _best_runs(runs, rows)
    names = overview.results.methods if overview.results else ()
    return Summary(
        headline,
        overview.evaluation_note,
        overview.learning_curves[0] if overview.learning_curves else None,
        {name: overview.line_styles[name] for name in names},
        (_label_cost(best), *_time_costs(runs, shares_answers=shares_answers)),
        steps_after_comparison(best[0], runs, rows),
    )


def summarise_tasks(runs: Sequence[Run], comparison: Comparison, *, shares_answers: bool) -> Summary:
    """Summarise a sweep over several tasks like ``summarise_methods``; the example is of the best method."""
    first = comparison.data_sets[0]
    method = best_method(first.table)
    example = next((run for run in first.table.runs if run.method == method), runs[0])
    return Summary(
        Headline(comparison.headline),
        describe_evaluation(runs),
        first.mean_curve,
        first.coloured_styles,
        (_label_cost(runs), *_time_costs(runs, shares_answers=shares_answers)),
        steps_after_sweep(example, comparison.missing),
    )


def _best_runs(runs: Sequence[Run], rows: Sequence[MethodRow]) -> list[Run]:
    """Return the runs of the method with the best mean; without results, all runs."""
    if not rows:
        return list(runs)
    return counted_runs(runs, max(rows, key=lambda row: row.score.mean).method)


def _label_cost(runs: Sequence[Run]) -> KeyFigure:
    """Return the labels of one run: their mean if the runs differ."""
    kind = runs[0].kind
    stages = [run.stages[-1] if run.stages else {} for run in runs]
    labels = [count for stage in stages if (count := finite_number(stage, "labels")) is not None]
    title = kind.measure("labels").title
    if not labels:
        return KeyFigure(title, "0", "so far")
    mean = sum(labels) / len(labels)
    note = _share_of_pool(runs[0], mean, kind)
    if len(runs) > 1:
        note = f"per run of {runs[0].method}" if _same(run.method for run in runs) else "per run, on average"
    clicks = [count for stage in stages if (count := finite_number(stage, "clicks")) is not None]
    if clicks and clicks != labels:
        mean_clicks = sum(clicks) / len(clicks)
        note = f"in {pluralise(mean_clicks, 'click', f'{mean_clicks:,.0f}')}"
    return KeyFigure(title, f"{mean:,.0f}", note)


def _share_of_pool(run: Run, labels: float, kind: RunKind) -> str:
    pool = run.data.get("pool")
    images = pool.get("images") if isinstance(pool, Mapping) else None
    if kind.label_name != "label" or not isinstance(images, int) or not images:
        return ""
    return f"of {images:,} target images ({100 * labels / images:.2g}%)"


def _time_costs(runs: Sequence[Run], *, shares_answers: bool = False) -> list[KeyFigure]:
    """Return the time of annotators and of machines, over all runs.

    If runs share answers, the time of annotators is the mean over runs, each of which counts these answers.
    """
    last = [run.stages[-1] for run in runs if run.stages]
    people = [value for stage in last if (value := finite_number(stage, "annotation_seconds")) is not None]
    machine = [value for stage in last if (value := finite_number(stage, "seconds")) is not None]
    in_runs = f"in {len(runs)} runs" if len(runs) > 1 else ""
    if people:
        n_timed, n_answers = (
            int(sum(finite_number(stage, key) or 0 for stage in last))
            for key in ("timed_units", "annotation_units")
        )
        total, unit, timed = sum(people), in_runs, describe_timed(n_timed, n_answers)
        if shares_answers:
            total, unit = total / len(people), "per run, on average; runs share answers"
            timed = "not all timed" if timed else ""
        people_cost = KeyFigure(
            "People", format_duration(total), ", ".join(filter(None, (unit, timed))) or "of annotation"
        )
    elif any(run.files.questions_path.is_dir() for run in runs):
        people_cost = KeyFigure("People", "not timed", "the answers have no times")
    else:
        people_cost = KeyFigure("People", "none", "labels came with the data")
    devices = {str(device) for run in runs if (device := run.environment.get("device"))}
    device = f"on {devices.pop()}" if len(devices) == 1 else ""
    machine_cost = KeyFigure(
        "Machine",
        format_duration(sum(machine)) if machine else "not recorded",
        " ".join(filter(None, (in_runs, device))),
    )
    return [people_cost, machine_cost]


def _same(values: Iterable[_T]) -> bool:
    return len(set(values)) == 1
