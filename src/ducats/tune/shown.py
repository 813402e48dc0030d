"""Table of the trials of a search."""

from rich.table import Table

from ducats.tune.search import Tuned

PARTS = {  # columns for parts of a score: title, factor, digits
    "source": ("source risk", 1, 4),
    "plain": ("uncorrected risk", 1, 4),
    "effective": ("effective sample %", 100, 1),
    "domain_accuracy": ("domain accuracy %", 100, 1),
    "images": ("images", 1, 0),
}


def table(found: Tuned, most: int = 20) -> Table:
    """Build a table of the best trials, best first; tune.json has all of them."""
    best = found.outcomes[0]
    view = Table(header_style="bold")
    for key in best.settings:
        view.add_column(key.rsplit(".", 1)[-1])
    view.add_column("risk", justify="right")
    shown = {name: how for name, how in PARTS.items() if name in best.parts}
    for title, _, _ in shown.values():
        view.add_column(title, justify="right")
    for one in found.outcomes[:most]:
        parts = (f"{factor * one.parts[name]:.{digits}f}" for name, (_, factor, digits) in shown.items())
        risk = f"{one.risk:.4f} ± {one.deviation:.4f}{' !' if one.degenerate else ''}"
        view.add_row(*(str(value) for value in one.settings.values()), risk, *parts)
    return view
