"""Template context about all runs of one kind: table of methods, curves, settings and versions."""

import os
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ducats.errors import UserError
from ducats.report import curves, provenance
from ducats.report.classes import class_table
from ducats.report.kinds import IMAGES, Measure
from ducats.report.people import People, people
from ducats.report.read import Run, number
from ducats.report.run_section.figure_panels import draw_multi_run_panels
from ducats.report.tables import MethodRow, Spread, by_method, counted, methods, paper, shown
from ducats.report.tasks import columns_of, place_of
from ducats.report.words import headline


def overview(runs: Sequence[Run], mixed: bool = False) -> dict[str, Any]:
    """Return the template context about all runs together; for a single run, most of it is in its section.

    Args:
        runs: runs of one kind.
        mixed: whether the runs cover several tasks; averages over all runs are then left out.
    """
    rows = by_method(runs)
    kind = runs[0].kind
    names = methods(runs)
    alone = len(runs) == 1
    answered, spoilt = _people(runs)
    about = {
        "key": kind.prefix,
        "alone": alone,
        "every": runs,
        "chapters": [],
        "kind": kind,
        "of_pixels": kind != IMAGES,
        "headline": headline(rows, kind),
        "cautions": [
            *([] if mixed or alone else provenance.cautions(runs)),
            *spoilt,
        ],  # the section of a single run has its own warnings
        "looks": curves.looks(names),
        "people": answered,
        "class_table": None if alone or mixed else class_table(runs),
    }
    if mixed:
        return about | _tables(runs, rows) | {"table": [], "reliability": {}, "losses": {}, "across": ()}
    return about if alone else about | _tables(runs, rows) | _figures(runs, rows)


def _people(runs: Sequence[Run]) -> tuple[list[People], list[str]]:
    """Return the annotation statistics of each run, and warnings about runs whose answers are unreadable."""
    found, spoilt = [], []
    for run in runs:
        try:
            found += people([run])
        except UserError as error:
            reason = str(error).replace(f"{run.folder}{os.sep}", "")
            spoilt.append(f"The answers of annotators in {run.name} are not shown: {reason}.")
    return found, spoilt


def _tables(runs: Sequence[Run], rows: Sequence[MethodRow]) -> dict[str, Any]:
    measures, kind = shown(rows), runs[0].kind
    return {
        "score": kind.measure(kind.headline),
        "evaluated_on": provenance.measured_on(runs),
        "measures": measures,
        "table": [(row, _cells(row, rows, measures)) for row in rows],
        "measured": [row.method for row in rows],
        "methods": methods(runs),
        "runs": _run_rows(runs),
        "settings": provenance.settings(runs),
        "environments": provenance.environments(runs),
    }


def _figures(runs: Sequence[Run], rows: Sequence[MethodRow]) -> dict[str, Any]:
    kind = runs[0].kind
    calibrated = [
        row.method for row in rows if any("reliability" in r.stages[-1] for r in counted(runs, row.method))
    ]
    trained = [name for name in methods(runs) if any(run.epochs for run in runs if run.method == name)]
    clicked = any(measure.key == "clicks" for measure in shown(rows))

    def over(key: str, title: str, spent: str = "labels") -> Markup:
        return Markup(curves.over_labels(runs, key, title, spent))

    return {
        "scores": over(kind.headline, kind.score),
        "over_clicks": over(kind.headline, kind.score, "clicks") if clicked else "",
        "calibration": over("ece", "calibration error"),
        "reliability": {name: Markup(curves.reliability_diagram(runs, name)) for name in calibrated},
        "losses": {name: Markup(curves.loss_curves(runs, name)) for name in trained},
        "terms": curves.term_looks(runs),
        "across": draw_multi_run_panels(runs, kind.prefix),
    }


def _cells(row: MethodRow, rows: Sequence[MethodRow], measures: Sequence[Measure]) -> list[tuple[str, bool]]:
    return [(paper(row.values[m.key], m), _is_best(row, rows, m)) for m in measures]


def _is_best(row: MethodRow, rows: Sequence[MethodRow], measure: Measure) -> bool:
    values = [value.mean for other in rows if (value := other.values[measure.key]) is not None]
    mine = row.values[measure.key]
    if mine is None or len(values) < 2 or not measure.better:
        return False
    return measure.better * mine.mean == max(measure.better * value for value in values)


def _run_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    order = {method: place for place, method in enumerate(methods(runs))}
    columns = columns_of(runs)
    rows = []
    for run in sorted(runs, key=lambda run: (order[run.method], run.seed)):
        last = run.stages[-1] if run.stages else {}
        score, ece, seconds = (number(last, key) for key in (run.kind.headline, "ece", "seconds"))
        labels = number(last, "labels")
        rows.append(
            {
                "folder": run.name,
                "task": place_of(run, columns),
                "method": run.method,
                "seed": str(run.seed),
                "state": "finished" if run.finished else "unfinished",
                "stages": str(len(run.stages)),
                "labels": paper(None if labels is None else Spread(labels, None), run.kind.measure("labels")),
                "score": "–" if score is None else f"{100 * score:.2f}",
                "ece": "–" if ece is None else f"{100 * ece:.2f}",
                "seconds": "–" if seconds is None else f"{seconds:.1f}",
            }
        )
    return rows
