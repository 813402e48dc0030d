"""The verdict on a run: the gain from its labels in sentences and key figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from ducats.records import Record
from ducats.report.chapter.gain import Against, Band, Gain, against_random, gain, picks_at_random, same_data
from ducats.report.chapter.outlook import Outlook, outlook
from ducats.report.kinds import Kind
from ducats.report.read import Run, number
from ducats.report.words import LEVEL

PER = {"label": 1, "labelled pixel": 1000}  # unit of the gain: that of a single pixel would be tiny
SO_FAR = "The run is not finished; the numbers are from its latest stage."


@dataclass(frozen=True)
class Fact:
    """A key figure at the top of a run section, with an optional remark."""

    name: str
    value: str
    about: str = ""


@dataclass(frozen=True)
class Worth:
    """The verdict on a run: main sentence, remarks and key figures."""

    sentence: str
    remarks: tuple[str, ...]
    facts: tuple[Fact, ...]


def worth(run: Run, others: Sequence[Run]) -> Worth:
    """Describe the gain from a run's labels, the comparison with random selection, and the likely next gain.

    ``others`` are runs to compare with; those on other data are ignored.
    """
    brought, beside = gain(run), against_random(run, others)
    last = run.result
    remarks = [*_of_random(run, brought, beside), *_of_the_test(run)]
    if brought is not None and brought.labels:
        remarks.append(_of_training(run, others))
        remarks.append(next_batch(outlook(run), run.kind))
    if not run.finished:
        remarks.append(SO_FAR if run.stages else "The first evaluation comes before the first query.")
    return Worth(_sentence(run, brought), tuple(remarks), tuple(_facts(run, brought, beside, last)))


def _sentence(run: Run, brought: Gain | None) -> str:
    score = _capital(run.kind.score)
    last = run.result
    if not run.stages and not run.finished:
        return f"{run.method} has not been evaluated yet."
    if last is None:
        return f"{run.method} was not evaluated on a test set, so the gain from its labels is unknown."
    now = f"{100 * last[run.kind.headline]:.1f}%"
    if brought is None or brought.labels == 0:
        if brought is None and not run.finished:
            return f"{score} is {now} before the first labels."
        return f"{score} is {now} with {amount(last['labels'], run.kind)}."
    interval = "" if brought.band is None else f" ({_range(brought.band)})"
    return f"{score} {_move(brought)} with {amount(brought.labels, run.kind)}{interval}."


def _move(brought: Gain) -> str:
    ends = f"from {100 * brought.before:.1f}% to {100 * brought.after:.1f}%"
    if abs(brought.points) < LEVEL:
        return f"changed by less than {100 * LEVEL:g} points, {ends},"
    return f"{'rose' if brought.points > 0 else 'fell'} by {points(abs(brought.points))}, {ends},"


def _of_random(run: Run, brought: Gain | None, beside: Sequence[Against]) -> list[str]:
    if brought is None or not brought.labels:
        return []
    if picks_at_random(run):
        return ["The labels were selected at random, so this run is a baseline for other methods."]
    if not beside:
        return [
            "This report has no comparable run with random selection, so it cannot show whether random "
            "labels would have done as well. Run the same command with --method random and report both runs."
        ]
    return [compared(one) for one in beside]


def compared(one: Against) -> str:
    """Compare a run with random selection in one or two sentences."""
    who = f"{one.method}, which trains the same way but selects at random" if one.alike else one.method
    gap = f"{points(abs(one.difference))} {'above' if one.difference > 0 else 'below'} {who}"
    if one.band is None:
        return (
            f"The score is {gap}. One seed cannot show whether this difference is significant; run more "
            "seeds of both methods."
        )
    interval = _range(one.band)
    if one.band.low <= 0 <= one.band.high:
        return f"The score is {gap} ({interval}). This difference is not significant."
    better = one.band.low > 0
    if one.alike:
        verb = "beats" if better else "loses to"
        return f"The score is {gap} ({interval}): the query {verb} random selection."
    return (
        f"The score is {gap} ({interval}): the method is {'better' if better else 'worse'} as a whole. The "
        "two also differ in training, so the query alone does not explain the difference."
    )


def next_batch(guess: Outlook, kind: Kind) -> str:
    """Describe the estimated gain from the next batch and how it was computed."""
    if guess.why_not:
        return f"The gain from the next labels cannot be estimated: {guess.why_not}."
    gain_range = f"{signed(guess.low)} to {signed(guess.high)} points"
    what = f"The next {amount(guess.batch, kind)} would likely add {gain_range}"
    if guess.low < LEVEL:
        what += ", possibly nothing"
    how = f"extrapolated with a saturating curve fitted to {guess.stages} stages"
    left_out = (
        f" The last {guess.tail} epochs are left out: they reflect training more than labels."
        if guess.tail
        else ""
    )
    return f"{what} (best estimate {signed(guess.guess)}, {how}).{left_out}"


def _of_training(run: Run, others: Sequence[Run]) -> str:
    """Describe how much of the gain training alone may explain."""
    first, last = run.stages[0]["epoch"], run.stages[-1]["epoch"]
    remark = (
        f"Training continued from epoch {first} to {last}, so the labels may not explain the whole change."
    )
    free = [
        other
        for other in others
        if other.finished
        and other.result is not None
        and not other.result["labels"]
        and same_data(run, other)
    ]
    if not free:
        return f"{remark} Add a run with --method source-only to see the effect of training alone."
    other = min(free, key=lambda one: (one.seed != run.seed, one.seed))
    assert other.result is not None
    return f"{remark} {other.method} reached {100 * other.result[run.kind.headline]:.1f}% with no labels."


def _of_the_test(run: Run) -> list[str]:
    """Describe any overlap between evaluated and labelled images."""
    on = run.result.get("evaluated_on") if run.result is not None else None
    if on == "unlabelled":
        return [
            "Each stage was evaluated on the images not labelled yet, so the evaluated images differ between "
            "stages."
        ]
    if on == "target":
        return ["It was evaluated on all target images, including those that it was trained on."]
    return []


def _facts(run: Run, brought: Gain | None, beside: Sequence[Against], last: Record | None) -> list[Fact]:
    kind, found = run.kind, []
    if brought is not None:
        found += [
            Fact(f"{_capital(kind.score)} before", f"{100 * brought.before:.2f}%"),
            Fact(f"{_capital(kind.score)} after", f"{100 * brought.after:.2f}%"),
        ]
    elif last is not None:
        found.append(Fact(_capital(kind.score), f"{100 * last[kind.headline]:.2f}%"))
    stage = run.stages[-1] if run.stages else {}
    if (labels := number(stage, "labels")) is not None:
        found.append(Fact(kind.measure("labels").title, f"{labels:,.0f}"))
    if (clicks := number(stage, "clicks")) is not None and clicks != labels:
        found.append(Fact("Clicks", f"{clicks:,.0f}"))
    if (seconds := number(stage, "annotation_seconds")) is not None:
        found.append(Fact("Annotation minutes", f"{seconds / 60:.1f}"))
    if brought is not None and brought.labels:
        found.append(_per_label("Gain", brought.points, brought.labels, brought.band, kind))
        found += [
            _per_label(f"Gain over {one.method}", one.difference, brought.labels, one.band, kind)
            for one in beside
        ]
    return found


def _per_label(name: str, difference: float, labels: int, band: Band | None, kind: Kind) -> Fact:
    many = PER[kind.label]
    per = 100 * many / labels
    sure = "" if band is None else f"95% CI {_short(band.low * per)} to {_short(band.high * per)}"
    return Fact(
        f"{name} per {kind.label if many == 1 else f'{many:,} {kind.label}s'}, points",
        _short(difference * per),
        sure,
    )


def _short(value: float) -> str:
    """Format with a sign and two significant digits.

    >>> _describe_error(0.2), _describe_error(-0.0421), _describe_error(12.3)
    ('+0.20', '−0.042', '+12')
    """
    return f"{value:+#.2g}".rstrip(".").replace("-", "−")


def points(share: float) -> str:
    """Format a difference of scores in percentage points: ``4.1 points``."""
    return f"{100 * share:.1f} point{'' if f'{100 * share:.1f}' == '1.0' else 's'}"


def signed(share: float) -> str:
    """Format a difference in percentage points with a typographic minus; zero has no sign."""
    text = f"{100 * share:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def amount(labels: float, kind: Kind) -> str:
    """Format a number of labels: ``65 labels``."""
    if not labels:
        return "no labels"
    return f"{labels:,.0f} {kind.label}{'' if labels == 1 else 's'}"


def _range(band: Band) -> str:
    return f"95% CI {signed(band.low)} to {signed(band.high)}, {band.by}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text != "mIoU" else text
