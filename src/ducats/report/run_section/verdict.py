"""The verdict on a run: the gain from its labels in sentences and key figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from ducats.report.headline import TIE_TOLERANCE
from ducats.report.run_kinds import RunKind, capitalise
from ducats.report.run_reader import Run
from ducats.report.run_section.extrapolation import GainForecast, forecast_gain
from ducats.report.run_section.gain import (
    ConfidenceInterval,
    Gain,
    RandomComparison,
    compare_with_random,
    compute_gain,
    has_same_data,
    selects_at_random,
)
from ducats.runfolder.records import (
    Record,
    audit_intervals,
    describe_audit,
    describe_audited,
    describe_random_gain,
    describe_timed_record,
    finite_number,
)
from ducats.utils.findings import pluralise

# Labels that the gain is stated for: that of a single pixel would be tiny.
LABELS_PER_GAIN_UNIT = {"label": 1, "labelled pixel": 1000}
UNFINISHED_REMARK = "The run is not finished; the numbers are from its latest stage."


@dataclass(frozen=True)
class KeyFigure:
    """A key figure at the top of a run section, with an optional remark."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run: main sentence, remarks and key figures."""

    sentence: str
    remarks: tuple[str, ...]
    key_figures: tuple[KeyFigure, ...]
    context: str  # the remarks without which the main sentence could mislead
    compared_with_random: bool


def make_verdict(run: Run, others: Sequence[Run]) -> Verdict:
    """Describe the gain from a run's labels, the comparison with random selection, and the likely next gain.

    ``others`` are runs to compare with; those on other data are ignored.
    """
    gain, comparisons = compute_gain(run), compare_with_random(run, others)
    last = run.result
    random_remarks, evaluation_remarks = _random_remarks(run, gain, comparisons), _evaluation_remarks(run)
    remarks = [*random_remarks, *evaluation_remarks]
    if gain is not None and gain.labels:
        remarks.append(_training_remark(run, others))
        remarks.append(forecast_sentence(forecast_gain(run), run.kind))
    remarks += _audit_remarks(run)
    if not run.finished:
        remarks.append(
            UNFINISHED_REMARK if run.stages else "The first evaluation comes before the first query."
        )
    return Verdict(
        sentence=_sentence(run, gain),
        remarks=tuple(remarks),
        key_figures=tuple(_key_figures(run, gain, comparisons, last)),
        context=" ".join([*random_remarks[-1:], *evaluation_remarks]),
        compared_with_random=bool(comparisons),
    )


def _sentence(run: Run, gain: Gain | None) -> str:
    score = capitalise(run.kind.score_name)
    last = run.result
    if not run.stages and not run.finished:
        return f"{run.method} has not been evaluated yet."
    if last is None:
        labels = format_label_count(
            finite_number(run.stages[-1] if run.stages else {}, "labels") or 0, run.kind
        )
        if run.audits:
            return f"By the audit: {describe_audit(run.audits[-1])}; the run has {labels} in all."
        return f"{run.method} was not evaluated on a test set, so the gain from {labels} is unknown."
    now = f"{100 * last[run.kind.headline_metric]:.1f}%"
    if gain is None or gain.labels == 0:
        if gain is None and not run.finished:
            return f"{score} is {now} before the first labels."
        return f"{score} is {now} with {format_label_count(last['labels'], run.kind)}."
    interval = "" if gain.interval is None else f" ({_format_interval(gain.interval)})"
    return f"{score} {_change_phrase(gain)} with {format_label_count(gain.labels, run.kind)}{interval}."


def _change_phrase(gain: Gain) -> str:
    ends = f"from {100 * gain.before:.1f}% to {100 * gain.after:.1f}%"
    if abs(gain.difference) < TIE_TOLERANCE:
        return f"changed by less than {100 * TIE_TOLERANCE:g} points, {ends},"
    return f"{'rose' if gain.difference > 0 else 'fell'} by {format_points(abs(gain.difference))}, {ends},"


def _random_remarks(run: Run, gain: Gain | None, comparisons: Sequence[RandomComparison]) -> list[str]:
    if gain is None or not gain.labels:
        return []
    if selects_at_random(run):
        return ["The labels were selected at random, so this run is a baseline for other methods."]
    if not comparisons:
        return [
            "This report has no comparable run with random selection, so it cannot show whether random "
            "labels would have done as well."
        ]
    return [comparison_sentence(comparison) for comparison in comparisons]


def _audit_remarks(run: Run) -> list[str]:
    """Describe what the audit shows beyond the accuracy."""
    if not run.audits:
        return []
    last, remarks = run.audits[-1], []
    if run.result is not None:
        remarks.append(f"By the audit: {describe_audit(last)}.")
    remarks.append(
        f"The audit is a random sample of the {describe_audited(last)} that the model was not trained on. "
        "The intervals hold for all stages together, also if you stop because of them."
    )
    if run.finished and run.config.get("acquisition", {}).get("release_audit"):
        remarks.append(
            "After the last round, the model was also trained on the audit labels. The figures are those "
            "before."
        )
    if isinstance(gain := last.get("gain"), dict) and not run.stop_reason:
        most, name = format_points(max(0.0, gain["high"])), list(audit_intervals(last))[-1]
        remarks.append(
            f"The labels of the last round raised {name} by at most {most} (95 %). Gains usually shrink from "
            "round to round."
        )
    if run.random_gain is not None:
        remarks.append(describe_random_gain(run.random_gain))
    if run.stop_reason:
        remarks.append(f"The run stopped asking for labels before its budget was spent: {run.stop_reason}.")
    return remarks


def comparison_sentence(comparison: RandomComparison) -> str:
    """Compare a run with random selection in one or two sentences."""
    other_method = (
        f"{comparison.method}, which trains the same way but selects at random"
        if comparison.same_training
        else comparison.method
    )
    direction = "above" if comparison.difference > 0 else "below"
    gap = f"{format_points(abs(comparison.difference))} {direction} {other_method}"
    if comparison.interval is None:
        return (
            f"The score is {gap}. One seed cannot show whether this difference is significant; run more "
            "seeds of both methods."
        )
    interval = _format_interval(comparison.interval)
    if comparison.interval.low <= 0 <= comparison.interval.high:
        return f"The score is {gap} ({interval}). This difference is not significant."
    better = comparison.interval.low > 0
    if comparison.same_training:
        verb = "beats" if better else "loses to"
        return f"The score is {gap} ({interval}): the query {verb} random selection."
    return (
        f"The score is {gap} ({interval}): the method is {'better' if better else 'worse'} as a whole. The "
        "two also differ in training, so the query alone does not explain the difference."
    )


def forecast_sentence(forecast: GainForecast, kind: RunKind) -> str:
    """Describe the estimated gain from the next batch and how it was computed."""
    if forecast.reason_missing:
        return f"The gain from the next labels cannot be estimated: {forecast.reason_missing}."
    gain_range = f"{format_signed_points(forecast.low)} to {format_signed_points(forecast.high)} points"
    what = f"The next {format_label_count(forecast.n_labels, kind)} would likely add {gain_range}"
    if forecast.low < TIE_TOLERANCE:
        what += ", possibly nothing"
    how = f"extrapolated with a saturating curve fitted to {pluralise(forecast.n_stages, 'stage')}"
    left_out = (
        f" The last {forecast.excluded_epochs} epochs are left out: they reflect training more than labels."
        if forecast.excluded_epochs
        else ""
    )
    return f"{what} (best estimate {format_signed_points(forecast.estimate)}, {how}).{left_out}"


def _training_remark(run: Run, others: Sequence[Run]) -> str:
    """Describe how much of the gain training alone may explain."""
    first, last = run.stages[0]["epoch"], run.stages[-1]["epoch"]
    remark = (
        f"Training continued from epoch {first} to {last}, so the labels may not explain the whole change."
    )
    unlabelled_runs = [
        other
        for other in others
        if other.finished
        and other.result is not None
        and not other.result["labels"]
        and has_same_data(run, other)
    ]
    if not unlabelled_runs:
        return f"{remark} Add a run with --method source-only to see the effect of training alone."
    other = min(unlabelled_runs, key=lambda other: (other.seed != run.seed, other.seed))
    assert other.result is not None
    return (
        f"{remark} {other.method} reached {100 * other.result[run.kind.headline_metric]:.1f}% with no labels."
    )


def _evaluation_remarks(run: Run) -> list[str]:
    """Describe any overlap between evaluated and labelled images."""
    evaluated_on = run.result.get("evaluated_on") if run.result is not None else None
    if evaluated_on == "unlabelled":
        return [
            "Each stage was evaluated on the images not labelled yet, so the evaluated images differ between "
            "stages."
        ]
    if evaluated_on == "target":
        return ["It was evaluated on all target images, including those that it was trained on."]
    return []


def _key_figures(
    run: Run, gain: Gain | None, comparisons: Sequence[RandomComparison], last: Record | None
) -> list[KeyFigure]:
    kind, key_figures = run.kind, []
    if gain is not None:
        key_figures += [
            KeyFigure(f"{capitalise(kind.score_name)} before", f"{100 * gain.before:.2f}%"),
            KeyFigure(f"{capitalise(kind.score_name)} after", f"{100 * gain.after:.2f}%"),
        ]
    elif last is not None:
        key_figures.append(KeyFigure(capitalise(kind.score_name), f"{100 * last[kind.headline_metric]:.2f}%"))
    if run.audits:
        for name, one in audit_intervals(run.audits[-1]).items():
            interval = f"95%: {100 * one['low']:.1f} to {100 * one['high']:.1f}"
            key_figures.append(
                KeyFigure(f"{capitalise(name)} by audit", f"{100 * one['estimate']:.1f}%", interval)
            )
    stage = run.stages[-1] if run.stages else {}
    if (labels := finite_number(stage, "labels")) is not None:
        key_figures.append(KeyFigure(kind.measure("labels").title, f"{labels:,.0f}"))
    if (clicks := finite_number(stage, "clicks")) is not None and clicks != labels:
        key_figures.append(KeyFigure("Clicks", f"{clicks:,.0f}"))
    if (seconds := finite_number(stage, "annotation_seconds")) is not None:
        timed = describe_timed_record(stage)
        minutes = f"{seconds / 60:.1f}{f' ({timed})' if timed else ''}"
        key_figures.append(KeyFigure("Annotation minutes", minutes))
    if gain is not None and gain.labels:
        key_figures.append(_gain_per_label("Gain", gain.difference, gain.labels, gain.interval, kind))
        key_figures += [
            _gain_per_label(
                f"Gain over {comparison.method}",
                comparison.difference,
                gain.labels,
                comparison.interval,
                kind,
            )
            for comparison in comparisons
        ]
    return key_figures


def _gain_per_label(
    name: str, difference: float, labels: int, interval: ConfidenceInterval | None, kind: RunKind
) -> KeyFigure:
    n_labels = LABELS_PER_GAIN_UNIT[kind.label_name]
    scale = 100 * n_labels / labels
    interval_note = (
        ""
        if interval is None
        else f"95% CI {_format_signed(interval.low * scale)} to {_format_signed(interval.high * scale)}"
    )
    return KeyFigure(
        f"{name} per {kind.label_name if n_labels == 1 else f'{n_labels:,} {kind.label_name}s'}, points",
        _format_signed(difference * scale),
        interval_note,
    )


def _format_signed(value: float) -> str:
    """Format with a sign and two significant digits.

    >>> _format_signed(0.2), _format_signed(-0.0421), _format_signed(12.3)
    ('+0.20', '−0.042', '+12')
    """
    return f"{value:+#.2g}".rstrip(".").replace("-", "−")


def format_points(share: float) -> str:
    """Format a difference of scores in percentage points: ``4.1 points``."""
    return f"{100 * share:.1f} point{'' if f'{100 * share:.1f}' == '1.0' else 's'}"


def format_signed_points(share: float) -> str:
    """Format a difference in percentage points with a typographic minus; zero has no sign."""
    text = f"{100 * share:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def format_label_count(labels: float, kind: RunKind) -> str:
    """Format a number of labels: ``65 labels``."""
    if not labels:
        return "no labels"
    return pluralise(labels, kind.label_name, f"{labels:,.0f}")


def _format_interval(interval: ConfidenceInterval) -> str:
    low, high = format_signed_points(interval.low), format_signed_points(interval.high)
    return f"95% CI {low} to {high}, {interval.basis}"
