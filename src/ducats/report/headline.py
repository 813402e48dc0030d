"""The result in sentences. A method is called better only if the spread over seeds supports it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ducats.report.method_results import MethodRow
from ducats.report.run_kinds import CLASSIFICATION, RunKind
from ducats.utils.findings import pluralise

_HEADLINE_BASELINES = ("random", "source-only")  # the best method is always compared with these
MAIN_METHOD = "ducats"  # the default method; its rank is stated even if it is not first
TIE_TOLERANCE = 0.0005  # smaller differences vanish in rounding


@dataclass(frozen=True)
class Headline:
    """The result in one sentence, and remarks that qualify it."""

    sentence: str
    remarks: tuple[str, ...] = ()


def make_headline(rows: Sequence[MethodRow], kind: RunKind = CLASSIFICATION) -> Headline:
    """State the method with the best mean accuracy or mIoU, its lead, and how reliable the lead is.

    Args:
        rows: rows of one kind; accuracy and mIoU cannot be ranked together.
        kind: used only if there are no rows.
    """
    if not rows:
        return Headline(f"No run was evaluated on a test set, so {kind.score_name} cannot be compared.")
    if len({row.kind for row in rows}) > 1:
        raise ValueError("rows of several kinds cannot be ranked together; pass rows of one kind")
    ranked = sorted(rows, key=lambda row: -row.score.mean)  # stable: ties keep their order
    best, others = ranked[0], ranked[1:]
    if not others:
        return Headline(
            f"{_score_phrase(best, f'has an {best.kind.score_name} of')}.", tuple(_remarks(ranked))
        )
    close = [row for row in others if _is_tie(best, row) or _is_within_deviation(best, row)]
    baselines = [row for row in others if row.method in _HEADLINE_BASELINES and row not in close]
    score = best.kind.score_name if best.score.std is None else best.kind.mean_name
    sentence = _score_phrase(best, f"has the highest {score},")
    if close:
        sentence += f", but not clearly: {_close_methods_phrase(best, close)}"
    if baselines:
        start = ". It is " if close else ", "
        sentence += start + _join_words([_lead_phrase(best, row) for row in baselines])
    return Headline(f"{sentence}.", tuple(_remarks(ranked)))


def _remarks(ranked: Sequence[MethodRow]) -> list[str]:
    found = [
        _main_method_remark(ranked),
        _calibration_remark(ranked),
        _unequal_labels_remark(ranked),
        _single_seeds_remark(ranked),
    ]
    return [remark for remark in found if remark]


def _main_method_remark(ranked: Sequence[MethodRow]) -> str:
    names = [row.method for row in ranked]
    if MAIN_METHOD not in names or names[0] == MAIN_METHOD:
        return ""
    row, best = ranked[names.index(MAIN_METHOD)], ranked[0]
    gap_points = 100 * (best.score.mean - row.score.mean)
    rank = 1 + sum(other.score.mean > row.score.mean for other in ranked)
    if rank == 1:
        return f"{MAIN_METHOD} has the same {row.kind.mean_name} as {best.method}."
    relation = "level with" if _is_tie(best, row) else f"{gap_points:.1f} points behind"
    place = f"{MAIN_METHOD} ranks {rank} of {len(ranked)}, {relation} {best.method}"
    return f"{place}: {_format_score(row)} with {_labels_phrase(row)}."


def _calibration_remark(ranked: Sequence[MethodRow]) -> str:
    known = [(value.mean, row.method) for row in ranked if (value := row.values["ece"]) is not None]
    if len(known) < 2:
        return ""
    lowest_ece, name = min(known, key=lambda pair: pair[0])
    first_ece = next((mean for mean, method in known if method == ranked[0].method), None)
    text = f"{name} is best calibrated, with a calibration error of {100 * lowest_ece:.1f}%"
    if name != ranked[0].method and first_ece is not None:
        text += f"; {ranked[0].method} has {100 * first_ece:.1f}%"
    return f"{text}."


def _unequal_labels_remark(ranked: Sequence[MethodRow]) -> str:
    rows_with_labels = [row for row in ranked if _mean_labels(row) > 0]
    if len({_mean_labels(row) for row in rows_with_labels}) < 2:
        return ""
    phrases = [f"{row.method} {_labels_phrase(row)}" for row in rows_with_labels]
    return f"The number of labels differs: {_join_words(phrases)}."


def _single_seeds_remark(ranked: Sequence[MethodRow]) -> str:
    single = [row.method for row in ranked if row.score.std is None]
    if not single:
        return ""
    subject = "Every method" if len(single) == len(ranked) > 1 else _join_words(single)
    verb = "has" if len(single) == 1 or len(single) == len(ranked) else "have"
    return f"{subject} {verb} only one seed, so differences may be due to chance. Run more seeds."


def _score_phrase(row: MethodRow, verb: str) -> str:
    deviation = row.score.std
    reached = _format_score(row)
    if deviation is not None:
        reached += f" (± {100 * deviation:.1f} over {len(row.seeds)} seeds)"
    return f"{row.method} {verb} {reached} with {_labels_phrase(row)}"


def _lead_phrase(best: MethodRow, row: MethodRow) -> str:
    gap = 100 * (best.score.mean - row.score.mean)
    return f"{gap:.1f} points above {_name_with_labels(row, best)}"


def _name_with_labels(row: MethodRow, best: MethodRow) -> str:
    return row.method if _mean_labels(row) == _mean_labels(best) else f"{row.method} ({_labels_phrase(row)})"


def _close_methods_phrase(best: MethodRow, close: Sequence[MethodRow]) -> str:
    methods_by_relation = {
        relation: [_name_with_labels(row, best) for row in close if _is_tie(best, row) == is_tie]
        for is_tie, relation in ((True, "level with it"), (False, "within the deviation over seeds"))
    }
    parts = [
        f"{_join_words(named_methods)} {'is' if len(named_methods) == 1 else 'are'} {relation}"
        for relation, named_methods in methods_by_relation.items()
        if named_methods
    ]
    return _join_words(parts)


def _is_tie(best: MethodRow, row: MethodRow) -> bool:
    return best.score.mean - row.score.mean < TIE_TOLERANCE


def _is_within_deviation(best: MethodRow, row: MethodRow) -> bool:
    deviations = [d for d in (best.score.std, row.score.std) if d is not None]
    return bool(deviations) and best.score.mean - row.score.mean <= max(deviations)


def _format_score(row: MethodRow) -> str:
    return f"{100 * row.score.mean:.1f}%"


def _mean_labels(row: MethodRow) -> float:
    value = row.values["labels"]
    return 0.0 if value is None else value.mean


def _labels_phrase(row: MethodRow) -> str:
    n_labels = _mean_labels(row)
    if n_labels == 0:
        return "no labels"
    phrase = pluralise(n_labels, row.kind.label_name, _format_count(n_labels))
    clicks = row.values.get("clicks")
    if clicks is not None and clicks.mean != n_labels:  # clicks differ for regions and images
        phrase += f" in {pluralise(clicks.mean, 'click', _format_count(clicks.mean))}"
    return phrase


def _format_count(count: float) -> str:
    return f"{count:,.0f}" if count == round(count) else f"{count:,.1f}"


def _join_words(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
