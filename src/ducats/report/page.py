"""The page of a report: one HTML file that needs no network, in the reader's light or dark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ducats.files import write_text_atomically
from ducats.report import curves, provenance
from ducats.report.classes import class_table, percent
from ducats.report.kinds import IMAGES, Measure
from ducats.report.people import people
from ducats.report.read import Run, number
from ducats.report.tables import MethodRow, Spread, by_kind, by_method, counted, methods, paper, shown
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
    text = environment.get_template("page.html").render(title=title, parts=_parts(runs), percent=percent)
    write_text_atomically(out, text)
    return out


def _parts(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the page says about each kind of run; what was measured differently is never in one table."""
    parts = [_content(group) for group in by_kind(runs)]
    if len(parts) > 1:
        parts[0]["cautions"] = provenance.cautions(runs)
        for part in parts[1:]:
            part["cautions"] = []
    return parts


def _content(runs: Sequence[Run]) -> dict[str, Any]:
    rows = by_method(runs)
    kind = runs[0].kind
    measures = shown(rows)
    score = kind.measure(kind.headline)
    clicked = any(measure.key == "clicks" for measure in measures)
    names = methods(runs)
    measured = [row.method for row in rows]
    calibrated = [
        name for name in measured if any("reliability" in r.stages[-1] for r in counted(runs, name))
    ]
    trained = [name for name in names if any(run.epochs for run in runs if run.method == name)]
    return {
        "kind": kind,
        "of_pixels": kind != IMAGES,
        "score": score,
        "headline": headline(rows, kind),
        "cautions": provenance.cautions(runs),
        "measured_on": provenance.measured_on(runs),
        "measures": measures,
        "table": [(row, _cells(row, rows, measures)) for row in rows],
        "class_table": class_table(runs),
        "looks": curves.looks(names),
        "measured": measured,
        "scores": Markup(curves.over_labels(runs, kind.headline, kind.score)),
        "over_clicks": Markup(curves.over_labels(runs, kind.headline, kind.score, "clicks"))
        if clicked
        else "",
        "calibration": Markup(curves.over_labels(runs, "ece", "calibration error")),
        "reliability": {name: Markup(curves.reliability_diagram(runs, name)) for name in calibrated},
        "losses": {name: Markup(curves.loss_curves(runs, name)) for name in trained},
        "terms": curves.term_looks(runs),
        "people": people(runs),
        "methods": names,
        "runs": _run_rows(runs),
        "settings": provenance.settings(runs),
        "environments": provenance.environments(runs),
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
    rows = []
    for run in sorted(runs, key=lambda run: (order[run.method], run.seed)):
        last = run.stages[-1] if run.stages else {}
        score, ece, seconds = (number(last, key) for key in (run.kind.headline, "ece", "seconds"))
        labels = number(last, "labels")
        rows.append(
            {
                "folder": run.name,
                "method": run.method,
                "seed": str(run.seed),
                "state": "finished" if run.finished else "under way",
                "stages": str(len(run.stages)),
                "labels": paper(None if labels is None else Spread(labels, None), run.kind.measure("labels")),
                "score": "–" if score is None else f"{100 * score:.2f}",
                "ece": "–" if ece is None else f"{100 * ece:.2f}",
                "seconds": "–" if seconds is None else f"{seconds:.1f}",
            }
        )
    return rows
