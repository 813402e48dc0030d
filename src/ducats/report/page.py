"""The page of a report: one HTML file that needs no network, in the reader's light or dark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ducats.files import write_text_atomically
from ducats.report import curves, provenance
from ducats.report.read import Run, number
from ducats.report.tables import MEASURES, Measure, MethodRow, by_method, counted, methods, paper
from ducats.report.words import headline

TITLE = "ducats report"


def write_page(runs: Sequence[Run], out: Path, title: str = TITLE) -> Path:
    """Write the page over the runs to the file ``out``; the same runs give the same bytes."""
    environment = Environment(
        loader=PackageLoader("ducats.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("page.html").render(title=title, **_content(runs))
    write_text_atomically(out, text)
    return out


def _content(runs: Sequence[Run]) -> dict[str, Any]:
    rows = by_method(runs)
    names = methods(runs)
    measured = [row.method for row in rows]
    calibrated = [
        name for name in measured if any("reliability" in r.stages[-1] for r in counted(runs, name))
    ]
    trained = [name for name in names if any(run.epochs for run in runs if run.method == name)]
    return {
        "headline": headline(rows),
        "cautions": provenance.cautions(runs),
        "measured_on": provenance.measured_on(runs),
        "measures": MEASURES,
        "table": [(row, _cells(row, rows)) for row in rows],
        "looks": curves.looks(names),
        "measured": measured,
        "accuracy": Markup(curves.over_labels(runs, "accuracy", "accuracy")),
        "calibration": Markup(curves.over_labels(runs, "ece", "calibration error")),
        "reliability": {name: Markup(curves.reliability_diagram(runs, name)) for name in calibrated},
        "losses": {name: Markup(curves.loss_curves(runs, name)) for name in trained},
        "terms": curves.term_looks(runs),
        "methods": names,
        "runs": _run_rows(runs),
        "settings": provenance.settings(runs),
        "environments": provenance.environments(runs),
    }


def _cells(row: MethodRow, rows: Sequence[MethodRow]) -> list[tuple[str, bool]]:
    return [(paper(row.values[m.key], m), _is_best(row, rows, m)) for m in MEASURES]


def _is_best(row: MethodRow, rows: Sequence[MethodRow], measure: Measure) -> bool:
    values = [value.mean for other in rows if (value := other.values[measure.key]) is not None]
    mine = row.values[measure.key]
    if mine is None or len(values) < 2 or not measure.better:
        return False
    return measure.better * mine.mean == max(measure.better * value for value in values)


def _run_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    order = {method: place for place, method in enumerate(methods(runs))}
    rows = []
    for run in sorted(runs, key=lambda run: (order[run.method], run.seed)):
        last = run.stages[-1] if run.stages else {}
        accuracy, ece, seconds = (number(last, key) for key in ("accuracy", "ece", "seconds"))
        rows.append(
            {
                "folder": run.name,
                "method": run.method,
                "seed": str(run.seed),
                "state": "finished" if run.finished else "under way",
                "stages": str(len(run.stages)),
                "labels": str(last.get("labels", "–")),
                "accuracy": "–" if accuracy is None else f"{100 * accuracy:.2f}",
                "ece": "–" if ece is None else f"{100 * ece:.2f}",
                "seconds": "–" if seconds is None else f"{seconds:.1f}",
            }
        )
    return rows
