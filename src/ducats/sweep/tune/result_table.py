"""Table of the trials of a search."""

from rich.table import Table

from ducats.report.table import make_table, to_terminal
from ducats.sweep.tune.search import TuningResult

DETAIL_COLUMNS = {  # columns for details of a score: title, factor, digits
    "source_risk": ("source risk", 1, 4),
    "uncorrected_risk": ("uncorrected risk", 1, 4),
    "effective_fraction": ("effective sample %", 100, 1),
    "domain_accuracy": ("domain accuracy %", 100, 1),
    "images": ("images", 1, 0),
}


def trials_table(tuning_result: TuningResult, max_rows: int = 20) -> Table:
    """Build a table of the best trials, best first; tune.json has all of them."""
    best = tuning_result.results[0]
    columns = {name: column for name, column in DETAIL_COLUMNS.items() if name in best.details}
    titles = [key.rsplit(".", 1)[-1] for key in best.settings]
    titles += ["risk", *(title for title, _, _ in columns.values())]
    rows = [
        [
            *map(str, result.settings.values()),
            f"{result.risk:.4f} ± {result.standard_error:.4f}{' !' if result.is_degenerate else ''}",
            *(f"{factor * result.details[name]:.{digits}f}" for name, (_, factor, digits) in columns.items()),
        ]
        for result in tuning_result.results[:max_rows]
    ]
    return to_terminal(make_table(titles, rows, n_text_columns=len(best.settings)))
