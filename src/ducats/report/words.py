"""The result in sentences. A method is called better only if the spread over seeds supports it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ducats.report.kinds import IMAGES, Kind
from ducats.report.tables import MethodRow

BASELINES = ("random", "source-only")  # the best method is always compared with these
OURS = "duc"  # the method of this library; its rank is stated even if it is not first
LEVEL = 0.0005  # smaller differences vanish in rounding


@dataclass(frozen=True)
class Headline:
    """The result in one sentence, and remarks that qualify it."""

    sentence: str
    remarks: tuple[str, ...] = ()


def headline(rows: Sequence[MethodRow], kind: Kind = IMAGES) -> Headline:
    """State the method with the best mean accuracy or mIoU, its lead, and how reliable the lead is.

    Args:
        rows: rows of one kind; accuracy and mIoU cannot be ranked together.
        kind: used only if there are no rows.
    """
    if not rows:
        return Headline(f"No run was evaluated on a test set, so {kind.score} cannot be compared.")
    if len({row.kind for row in rows}) > 1:
        raise ValueError("rows of several kinds cannot be ranked together; pass rows of one kind")
    ranked = sorted(rows, key=lambda row: -row.score.mean)  # stable: ties keep their order
    best, others = ranked[0], ranked[1:]
    if not others:
        return Headline(f"{_reach(best, f'has an {best.kind.score} of')}.", tuple(_remarks(ranked)))
    close = [row for row in others if _is_level(best, row) or _is_within(best, row)]
    baselines = [row for row in others if row.method in BASELINES and row not in close]
    score = best.kind.score if best.score.deviation is None else best.kind.mean
    sentence = _reach(best, f"has the highest {score},")
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
    gap = 100 * (best.score.mean - row.score.mean)
    place = 1 + sum(other.score.mean > row.score.mean for other in ranked)
    if place == 1:
        return f"{OURS} has the same {row.kind.mean} as {best.method}."
    distance = (
        f"level with {best.method}" if _is_level(best, row) else f"{gap:.1f} points behind {best.method}"
    )
    return f"{OURS} ranks {place} of {len(ranked)}, {distance}: {_percent(row)} with {_labels(row)}."


def _calibration(ranked: Sequence[MethodRow]) -> str:
    known = [(value.mean, row.method) for row in ranked if (value := row.values["ece"]) is not None]
    if len(known) < 2:
        return ""
    low, name = min(known, key=lambda pair: pair[0])
    first = next((mean for mean, method in known if method == ranked[0].method), None)
    text = f"{name} is best calibrated, with a calibration error of {100 * low:.1f}%"
    if name != ranked[0].method and first is not None:
        text += f"; {ranked[0].method} has {100 * first:.1f}%"
    return f"{text}."


def _unequal_labels(ranked: Sequence[MethodRow]) -> str:
    buyers = [row for row in ranked if _spent(row) > 0]
    if len({_spent(row) for row in buyers}) < 2:
        return ""
    return f"The number of labels differs: {_list([f'{row.method} {_labels(row)}' for row in buyers])}."


def _single_seeds(ranked: Sequence[MethodRow]) -> str:
    single = [row.method for row in ranked if row.score.deviation is None]
    if not single:
        return ""
    who = "Every method" if len(single) == len(ranked) > 1 else _list(single)
    verb = "has" if len(single) == 1 or len(single) == len(ranked) else "have"
    return f"{who} {verb} only one seed, so differences may be due to chance. Run more seeds."


def _reach(row: MethodRow, verb: str) -> str:
    deviation = row.score.deviation
    reached = _percent(row)
    if deviation is not None:
        reached += f" (± {100 * deviation:.1f} over {len(row.seeds)} seeds)"
    return f"{row.method} {verb} {reached} with {_labels(row)}"


def _lead(best: MethodRow, row: MethodRow) -> str:
    gap = 100 * (best.score.mean - row.score.mean)
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
    return best.score.mean - row.score.mean < LEVEL


def _is_within(best: MethodRow, row: MethodRow) -> bool:
    deviations = [d for d in (best.score.deviation, row.score.deviation) if d is not None]
    return bool(deviations) and best.score.mean - row.score.mean <= max(deviations)


def _percent(row: MethodRow) -> str:
    return f"{100 * row.score.mean:.1f}%"


def _spent(row: MethodRow) -> float:
    value = row.values["labels"]
    return 0.0 if value is None else value.mean


def _labels(row: MethodRow) -> str:
    spent = _spent(row)
    if spent == 0:
        return "no labels"
    amount = f"{_amount(spent)} {row.kind.label}{'' if spent == 1 else 's'}"
    clicks = row.values.get("clicks")
    if clicks is not None and clicks.mean != spent:  # clicks differ for regions and images
        amount += f" in {_amount(clicks.mean)} click{'' if clicks.mean == 1 else 's'}"
    return amount


def _amount(spent: float) -> str:
    return f"{spent:,.0f}" if spent == round(spent) else f"{spent:,.1f}"


def _list(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
