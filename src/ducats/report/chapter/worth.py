"""Was it worth it? What a run's labels brought, in sentences that say no more than the numbers do."""

from collections.abc import Sequence
from dataclasses import dataclass

from ducats.records import Record
from ducats.report.chapter.gain import Against, Band, Gain, against_random, gain, picks_at_random, same_data
from ducats.report.chapter.outlook import Outlook, outlook
from ducats.report.kinds import Kind
from ducats.report.read import Run, number
from ducats.report.words import LEVEL

PER = {"label": 1, "labelled pixel": 1000}  # labels that a gain is told for: one pixel's would be nothing
SO_FAR = "The run is not finished: numbers are of its last stage so far."


@dataclass(frozen=True)
class Fact:
    """A number at the top of a chapter: its name, its value, and what one has to know about it."""

    name: str
    value: str
    about: str = ""


@dataclass(frozen=True)
class Worth:
    """What came of a run: the one sentence, those that follow, and the numbers behind them."""

    sentence: str
    remarks: tuple[str, ...]
    facts: tuple[Fact, ...]


def worth(run: Run, others: Sequence[Run]) -> Worth:
    """Say what a run's labels brought, whether random ones would have done, and what more would bring.

    Args:
        run: that it is about.
        others: runs beside it; those on other data do not count.
    """
    brought, beside = gain(run), against_random(run, others)
    last = run.result
    remarks = [*_of_random(run, brought, beside), *_of_the_test(run)]
    if brought is not None and brought.labels:
        remarks.append(_of_training(run, others))
        remarks.append(next_batch(outlook(run), run.kind))
    if not run.finished:
        remarks.append(SO_FAR if run.stages else "The first stage is measured before the first question.")
    return Worth(_sentence(run, brought), tuple(remarks), tuple(_facts(run, brought, beside, last)))


def _sentence(run: Run, brought: Gain | None) -> str:
    score = _capital(run.kind.score)
    last = run.result
    if not run.stages and not run.finished:
        return f"{_capital(run.method)}: begun, and not measured yet."
    if last is None:
        return f"{_capital(run.method)}: not measured on a test set, so what its labels brought is not known."
    now = f"{100 * last[run.kind.headline]:.1f}%"
    if brought is None or brought.labels == 0:
        if brought is None and not run.finished:
            return f"{score} is {now} before the first labels."
        return f"{score} is {now}; {amount(last['labels'], run.kind)} bought."
    what = f"{_move(brought)}: {points(abs(brought.points))} for {amount(brought.labels, run.kind)}"
    sure = "" if brought.band is None else f" ({_range(brought.band)})"
    return f"{score} {what}{sure}."


def _move(brought: Gain) -> str:
    ends = f"{100 * brought.before:.1f}% to {100 * brought.after:.1f}%"
    if abs(brought.points) < LEVEL:
        return f"stayed where it was, {ends}"
    return f"rose from {ends}" if brought.points > 0 else f"fell from {ends}"


def _of_random(run: Run, brought: Gain | None, beside: Sequence[Against]) -> list[str]:
    if brought is None or not brought.labels:
        return []
    if picks_at_random(run):
        return ["These labels were picked at random: it is what other methods have to beat."]
    if not beside:
        return [
            "Whether labels picked at random would have done as well cannot be said: there is no such run "
            "beside it. Make one with the same command and --method random, and report both."
        ]
    return [compared(one) for one in beside]


def compared(one: Against) -> str:
    """Say how a run stands against labels picked at random, and whether choosing them was worth it."""
    who = f"{one.method}, which trains alike and picks at random" if one.alike else one.method
    if one.band is None:
        verb = "above" if one.difference > 0 else "below"
        return (
            f"It is {points(abs(one.difference))} {verb} {who}; how sure that is cannot be told from one "
            "seed: run more seeds of both."
        )
    size = f"{points(abs(one.difference))} {'more' if one.difference > 0 else 'less'}"
    sure = _range(one.band)
    if one.band.low <= 0 <= one.band.high:
        return f"It cannot be told apart from {who}: {size} ({sure})."
    worth_it = "was worth it" if one.band.low > 0 else "was not worth it"
    if one.alike:
        return f"That is {size} than {who}, reached ({sure}): choosing the labels {worth_it}."
    whole = f"all in all it {worth_it}; the two also train differently"
    return f"That is {size} than {who} reached ({sure}): {whole}."


def next_batch(guess: Outlook, kind: Kind) -> str:
    """Say what the next batch would likely bring, and how that was guessed."""
    if guess.why_not:
        return f"What the next labels would bring cannot be said: {guess.why_not}."
    how = f"a curve that levels off, through {guess.stages} stages"
    if guess.tail:
        how += f"; the step of the last {guess.tail} epochs is left out: it shows training more than labels"
    much = f"{signed(guess.low)} to {signed(guess.high)} points"
    what = f"The next {amount(guess.batch, kind)} would likely bring {much}"
    if guess.low < LEVEL:
        what += ", so perhaps nothing"
    return f"{what} (best guess {signed(guess.guess)}; guessed by {how})."


def _of_training(run: Run, others: Sequence[Run]) -> str:
    """What training alone may have to do with the gain."""
    first, last = run.stages[0]["epoch"], run.stages[-1]["epoch"]
    spoken = (
        f"Training went on meanwhile, from epoch {first} to {last}, so not all of the change is due to labels"
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
        return f"{spoken}; a run without labels beside it, with --method source-only, would tell."
    other = min(free, key=lambda one: (one.seed != run.seed, one.seed))
    assert other.result is not None
    return (
        f"{spoken}: {other.method}, which bought none, ended at {100 * other.result[run.kind.headline]:.1f}%."
    )


def _of_the_test(run: Run) -> list[str]:
    """What the measured images have to do with the bought ones."""
    on = run.result.get("measured_on") if run.result is not None else None
    if on == "unlabelled":
        return ["It was measured on what was not bought yet: other images at each stage."]
    if on == "target":
        return ["It was measured on all target images, those that it learnt from among them."]
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
    if (seconds := number(stage, "people_seconds")) is not None:
        found.append(Fact("Minutes of people", f"{seconds / 60:.1f}"))
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
    sure = "" if band is None else f"95%: {_short(band.low * per)} to {_short(band.high * per)}"
    return Fact(
        f"{name} per {kind.label if many == 1 else f'{many:,} {kind.label}s'}, points",
        _short(difference * per),
        sure,
    )


def _short(value: float) -> str:
    """Two digits that count, and a sign.

    >>> _short(0.2), _short(-0.0421), _short(12.3)
    ('+0.20', '−0.042', '+12')
    """
    return f"{value:+#.2g}".rstrip(".").replace("-", "−")


def points(share: float) -> str:
    """A difference of two percentages: ``4.1 points``."""
    return f"{100 * share:.1f} point{'' if f'{100 * share:.1f}' == '1.0' else 's'}"


def signed(share: float) -> str:
    """In points, without the word; a minus is a minus, and zero has none."""
    text = f"{100 * share:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def amount(labels: float, kind: Kind) -> str:
    """So many labels, in words: ``65 labels``."""
    if not labels:
        return "no labels"
    return f"{labels:,.0f} {kind.label}{'' if labels == 1 else 's'}"


def _range(band: Band) -> str:
    return f"95%: {signed(band.low)} to {signed(band.high)}, {band.by}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text != "mIoU" else text
