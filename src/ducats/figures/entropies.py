"""Figure 1a: entropy of the point estimate against the expected entropy of the Dirichlet model."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.points import Array, addresses, commonest, scatter
from ducats.figures.runs import Runs, class_name, first_or, many, when
from ducats.figures.style import COLOURS, INK
from ducats.snapshot_files import Snapshot

MARKS = {False: "o", True: "^"}  # source, target


class Pairs(NamedTuple):
    """Two entropies of each sample, in nats."""

    point: Array  # of the point estimate
    expected: Array  # U_data
    target: Array  # bool
    group: Array  # label if known, else prediction


def pairs(first: Snapshot, second: Snapshot) -> Pairs:
    """Match the samples of two snapshots; drop samples that only one of them has."""
    _, mine, theirs = np.intersect1d(_sample(first), _sample(second), return_indices=True)
    here, there = np.flatnonzero(first.sampled)[mine], np.flatnonzero(second.sampled)[theirs]
    group = np.where(second.label[there] >= 0, second.label[there], second.predicted[there])
    return Pairs(first.entropy[here], second.u_data[there], second.is_target[there], group)


def _sample(of: Snapshot) -> Array:
    return addresses(of.is_target[of.sampled], of.image[of.sampled], of.position[of.sampled])


def entropies(runs: Runs, asked: Asked) -> Drawing:
    """Prepare a scatter plot of the two entropies of each sample."""
    if len(runs) > 2:
        raise UserError(
            f"`ducats figure entropies` compares at most two runs, not {len(runs)}; give fewer run folders"
        )
    x_run, y_run = runs[0], runs[-1]
    first, second = first_or(x_run, asked.round), first_or(y_run, asked.round)
    found = pairs(first, second)
    if not len(found.point):
        raise UserError(
            f"{x_run.folder} and {y_run.folder} have no common samples; give two runs on the same data"
        )
    above = found.expected > found.point
    shown = commonest(found.group)
    others = len(np.unique(found.group)) - len(shown)
    colour_of = dict(zip(shown, COLOURS, strict=False))
    colours = np.array([colour_of.get(int(group), COLOURS[-1]) for group in found.group])
    counts = [int((~found.target).sum()), int(found.target.sum())]
    said = (
        f"{many(counts[0], y_run)} from the source, {counts[1]:,} from the target; "
        f"median expected entropy {_median(found.expected[~found.target])} and "
        f"{_median(found.expected[found.target])} nats"
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for target, marker in MARKS.items():
            some = found.target == target
            scatter(axes, found.point[some], found.expected[some], colours[some], marker, 12 if target else 7)
        top = 1.04 * max(float(found.point.max()), float(found.expected.max()), 1e-3)
        axes.plot([0, top], [0, top], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
        axes.set(xlim=(-0.02 * top, top), ylim=(-0.02 * top, top))
        whose = ("", "") if len(runs) == 1 else (f" ({x_run.method})", f" ({y_run.method})")
        axes.set_xlabel(f"entropy of the point estimate{whose[0]}, nats")
        axes.set_ylabel(f"expected entropy U_data{whose[1]}, nats")
        if len(runs) == 1:
            note = "vertical gap to the diagonal: U_dis"
        else:
            share = f"{above[found.target].mean():.0%}" if counts[1] else "–"
            note = f"above the diagonal: {share} of the target"
        axes.set_title(f"{when(second)}; {note}")
        handles = [
            Line2D([], [], linestyle="", marker=marker, color=INK, label=f"{who} (n={count:,})", markersize=5)
            for (_, marker), who, count in zip(MARKS.items(), ("source", "target"), counts, strict=True)
        ]
        names = [(colour_of[group], class_name(y_run, group)) for group in shown]
        names += [(COLOURS[-1], f"{others} other class{'' if others == 1 else 'es'}")] if others else []
        handles += [
            Line2D([], [], linestyle="", marker="s", color=colour, label=name) for colour, name in names
        ]
        figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=9)

    title = "Entropy of the point estimate against expected entropy"
    return Drawing(draw, (6.4, 4.2), title, f"{title}, {when(second)}: {said}.")


def _median(values: Array) -> str:
    return f"{np.median(values):.3g}" if len(values) else "–"
