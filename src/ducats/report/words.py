"""What came out, in words made from the numbers; nobody is called better than the seeds can show."""

from collections.abc import Sequence
from dataclasses import dataclass

from ducats.report.tables import MethodRow

BASELINES = ("random", "source-only")  # what any choice of labels has to beat
OURS = "duc"  # the method this library is about: where it stands is said even when it is not first
LEVEL = 0.0005  # below this, two accuracies print alike


@dataclass(frozen=True)
class Headline:
    """One sentence that says what came out, and remarks that keep it honest."""

    sentence: str
    remarks: tuple[str, ...] = ()


def headline(rows: Sequence[MethodRow]) -> Headline:
    """Say which method has the best mean accuracy, against whom, and how sure the seeds make us."""
    if not rows:
        return Headline("No run was measured on a test set, so accuracy cannot be compared.")
    ranked = sorted(rows, key=lambda row: -row.accuracy.mean)  # stable: equals keep their order
    best, others = ranked[0], ranked[1:]
    if not others:
        return Headline(f"{_reach(best, 'has an accuracy of')}.", tuple(_remarks(ranked)))
    close = [row for row in others if _is_level(best, row) or _is_within(best, row)]
    baselines = [row for row in others if row.method in BASELINES and row not in close]
    kind = "accuracy" if best.accuracy.deviation is None else "mean accuracy"
    sentence = _reach(best, f"has the highest {kind},")
    if close:
        sentence += f", but not clearly: {_closeness(best, close)}"
    if baselines:
        start = ". It is " if close else ", "
        sentence += start + _list([_lead(best, row) for row in baselines])
    return Headline(f"{sentence}.", tuple(_remarks(ranked)))


def _remarks(ranked: Sequence[MethodRow]) -> list[str]:
    found = [_where_ours_stands(ranked), _calibration(ranked), _unequal_labels(ranked), _single_seeds(ranked)]
    return [remark for remark in found if remark]


def _where_ours_stands(ranked: Sequence[MethodRow]) -> str:
    names = [row.method for row in ranked]
    if OURS not in names or names[0] == OURS:
        return ""
    row, best = ranked[names.index(OURS)], ranked[0]
    gap = 100 * (best.accuracy.mean - row.accuracy.mean)
    place = 1 + sum(other.accuracy.mean > row.accuracy.mean for other in ranked)
    if place == 1:
        return f"{OURS} has the same mean accuracy as {best.method}."
    distance = (
        f"level with {best.method}" if _is_level(best, row) else f"{gap:.1f} points behind {best.method}"
    )
    return f"{OURS} is number {place} of {len(ranked)}, {distance}: {_percent(row)} with {_labels(row)}."


def _calibration(ranked: Sequence[MethodRow]) -> str:
    known = [(value.mean, row.method) for row in ranked if (value := row.values["ece"]) is not None]
    if len(known) < 2:
        return ""
    low, name = min(known, key=lambda pair: pair[0])
    first = next((mean for mean, method in known if method == ranked[0].method), None)
    text = f"Confidence fits best in {name}: a calibration error of {100 * low:.1f}%"
    if name != ranked[0].method and first is not None:
        text += f", against {100 * first:.1f}% in {ranked[0].method}"
    return f"{text}."


def _unequal_labels(ranked: Sequence[MethodRow]) -> str:
    buyers = [row for row in ranked if _spent(row) > 0]
    if len({_spent(row) for row in buyers}) < 2:
        return ""
    return f"They did not spend alike: {_list([f'{row.method} {_labels(row)}' for row in buyers])}."


def _single_seeds(ranked: Sequence[MethodRow]) -> str:
    single = [row.method for row in ranked if row.accuracy.deviation is None]
    if not single:
        return ""
    who = "Every method here" if len(single) == len(ranked) > 1 else _list(single)
    verb = "has" if len(single) == 1 or len(single) == len(ranked) else "have"
    return f"{who} {verb} one seed only, which cannot tell merit from chance: run more seeds to know."


def _reach(row: MethodRow, verb: str) -> str:
    deviation = row.accuracy.deviation
    accuracy = _percent(row)
    if deviation is not None:
        accuracy += f" (± {100 * deviation:.1f} over {len(row.seeds)} seeds)"
    return f"{row.method} {verb} {accuracy} with {_labels(row)}"


def _lead(best: MethodRow, row: MethodRow) -> str:
    gap = 100 * (best.accuracy.mean - row.accuracy.mean)
    return f"{gap:.1f} points above {_with_labels(row, best)}"


def _with_labels(row: MethodRow, best: MethodRow) -> str:
    return row.method if _spent(row) == _spent(best) else f"{row.method} ({_labels(row)})"


def _closeness(best: MethodRow, close: Sequence[MethodRow]) -> str:
    named = {
        how: [_with_labels(row, best) for row in close if _is_level(best, row) == is_level]
        for is_level, how in ((True, "level with it"), (False, "within the deviation over seeds"))
    }
    parts = [f"{_list(who)} {'is' if len(who) == 1 else 'are'} {how}" for how, who in named.items() if who]
    return _list(parts)


def _is_level(best: MethodRow, row: MethodRow) -> bool:
    return best.accuracy.mean - row.accuracy.mean < LEVEL


def _is_within(best: MethodRow, row: MethodRow) -> bool:
    deviations = [d for d in (best.accuracy.deviation, row.accuracy.deviation) if d is not None]
    return bool(deviations) and best.accuracy.mean - row.accuracy.mean <= max(deviations)


def _percent(row: MethodRow) -> str:
    return f"{100 * row.accuracy.mean:.1f}%"


def _spent(row: MethodRow) -> float:
    value = row.values["labels"]
    return 0.0 if value is None else value.mean


def _labels(row: MethodRow) -> str:
    spent = _spent(row)
    if spent == 0:
        return "no labels"
    amount = f"{spent:,.0f}" if spent == round(spent) else f"{spent:,.1f}"
    return f"{amount} label{'' if spent == 1 else 's'}"


def _list(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
