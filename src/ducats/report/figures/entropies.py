"""Figure 1a: entropy of the point estimate against the expected entropy of the Dirichlet model."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.points import legend_marker, most_frequent_classes, sample_ids, scatter_rasterised
from ducats.report.figures.runs import (
    RunSequence,
    describe_time,
    format_sample_count,
    snapshot_of_round_or_first,
)
from ducats.report.figures.style import PLOT_COLOURS, TEXT_COLOUR
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise
from ducats.utils.npz_columns import AnyArray

DOMAIN_MARKERS = {False: "o", True: "^"}  # source, target


class EntropyPairs(NamedTuple):
    """Two entropies of each sample, in nats."""

    point_entropy: AnyArray  # of the point estimate
    expected_entropy: AnyArray  # U_data
    is_target: AnyArray  # bool
    class_index: AnyArray  # label if known, else prediction


def match_samples(first: Snapshot, second: Snapshot) -> EntropyPairs:
    """Match the samples of two snapshots; drop samples that only one of them has."""
    _, first_matches, second_matches = np.intersect1d(
        _sampled_ids(first), _sampled_ids(second), return_indices=True
    )
    first_rows = np.flatnonzero(first.sampled)[first_matches]
    rows = np.flatnonzero(second.sampled)[second_matches]
    class_index = np.where(second.label[rows] >= 0, second.label[rows], second.predicted[rows])
    return EntropyPairs(first.entropy[first_rows], second.u_data[rows], second.is_target[rows], class_index)


def _sampled_ids(snapshot: Snapshot) -> AnyArray:
    rows = snapshot.sampled
    return sample_ids(snapshot.is_target[rows], snapshot.image[rows], snapshot.position[rows])


def prepare_entropies(runs: RunSequence, options: FigureOptions) -> PreparedFigure:
    """Prepare a scatter plot of the two entropies of each sample."""
    if len(runs) > 2:
        raise UserError(
            f"`ducats figure entropies` compares at most two runs, not {len(runs)}; give fewer run folders"
        )
    x_run, y_run = runs[0], runs[-1]
    first, second = (snapshot_of_round_or_first(run, options.round) for run in (x_run, y_run))
    pairs = match_samples(first, second)
    if not len(pairs.point_entropy):
        raise UserError(
            f"{x_run.folder} and {y_run.folder} have no common samples; give two runs on the same data"
        )
    above = pairs.expected_entropy > pairs.point_entropy
    coloured_classes = most_frequent_classes(pairs.class_index)
    n_other_classes = len(np.unique(pairs.class_index)) - len(coloured_classes)
    colour_of = dict(zip(coloured_classes, PLOT_COLOURS, strict=False))
    colours = np.array([colour_of.get(int(label), PLOT_COLOURS[-1]) for label in pairs.class_index])
    counts = [int((~pairs.is_target).sum()), int(pairs.is_target.sum())]
    summary = (
        f"{format_sample_count(counts[0], y_run)} from the source, {counts[1]:,} from the target; "
        f"median expected entropy {_format_median(pairs.expected_entropy[~pairs.is_target])} and "
        f"{_format_median(pairs.expected_entropy[pairs.is_target])} nats"
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for target, marker in DOMAIN_MARKERS.items():
            in_domain = pairs.is_target == target
            x, y = pairs.point_entropy[in_domain], pairs.expected_entropy[in_domain]
            scatter_rasterised(axes, x, y, colours[in_domain], marker, 12 if target else 7)
        top = 1.04 * max(float(pairs.point_entropy.max()), float(pairs.expected_entropy.max()), 1e-3)
        axes.plot([0, top], [0, top], color=TEXT_COLOUR, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
        axes.set(xlim=(-0.02 * top, top), ylim=(-0.02 * top, top))
        method_notes = ("", "") if len(runs) == 1 else (f" ({x_run.method})", f" ({y_run.method})")
        axes.set_xlabel(f"entropy of the point estimate{method_notes[0]}, nats")
        axes.set_ylabel(f"expected entropy U_data{method_notes[1]}, nats")
        if len(runs) == 1:
            note = "vertical gap to the diagonal: U_dis"
        else:
            share = f"{above[pairs.is_target].mean():.0%}" if counts[1] else "–"
            note = f"above the diagonal: {share} of the target"
        axes.set_title(f"{describe_time(second)}; {note}")
        handles = [
            legend_marker(f"{domain} (n={count:,})", marker, color=TEXT_COLOUR, markersize=5)
            for marker, domain, count in zip(
                DOMAIN_MARKERS.values(), ("source", "target"), counts, strict=True
            )
        ]
        names = [(colour_of[label], y_run.class_name(label)) for label in coloured_classes]
        if n_other_classes:
            names.append((PLOT_COLOURS[-1], pluralise(n_other_classes, "other class")))
        handles += [legend_marker(name, "s", color=colour) for colour, name in names]
        figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=9)

    title = "Entropy of the point estimate against expected entropy"
    return PreparedFigure(draw, (6.4, 4.2), title, f"{title}, {describe_time(second)}: {summary}.")


def _format_median(values: AnyArray) -> str:
    return f"{np.median(values):.3g}" if len(values) else "–"
