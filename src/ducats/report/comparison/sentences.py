"""The result over all tasks in sentences, based on paired tests."""

from collections.abc import Sequence

from ducats.report.comparison.ranks import MIN_COMPARISONS, SIGNIFICANCE_LEVEL, Ranking
from ducats.report.headline import MAIN_METHOD
from ducats.report.method_results import MeanStd
from ducats.report.method_tables import (
    FULLY_SUPERVISED,
    TaskTable,
    TaskTableRow,
    format_p_value,
    paired_t_test,
)

_RANDOM = "random"  # the best method is compared with it


def result_sentences(table: TaskTable) -> list[str]:
    """State the method with the highest average, its lead, how many tasks it wins, and the rank of DUC."""
    ranked = _rows_by_average(table)
    if not ranked:
        return ["No method has a finished run of every task, so averages cannot be compared."]
    (best, mean), *others = ranked
    score = table.kind.score_name
    has_several_tasks = len(table.tasks) > 1
    average_name = f"average {score} over {len(table.tasks)} tasks" if has_several_tasks else f"mean {score}"
    score_text = f"{100 * mean.mean:.1f}%"
    if mean.std is not None:
        score_text += f" ± {100 * mean.std:.1f}"
    article = "the highest" if others else "an" if has_several_tasks else "a"
    lead_text = f"{best.method} has {article} {average_name}: {score_text}"
    rivals = [row for row, _ in others[:1]]
    rivals += [row for row, _ in others[1:] if row.method == _RANDOM]
    result = [f"{lead_text}{''.join(f', {_difference_phrase(best, rival)}' for rival in rivals)}."]
    n_first = sum(best.method in _best_on_task(table, task) for task in table.tasks)
    if others and has_several_tasks:
        result.append(f"{best.method} is first on {n_first} of {len(table.tasks)} tasks.")
    for rank, (row, _) in enumerate(ranked[1:], start=2):
        if row.method == MAIN_METHOD:
            result.append(f"{MAIN_METHOD} ranks {rank} of {len(ranked)}, {_difference_phrase(row, best)}.")
    return result


def ranking_note(ranking: Ranking | None) -> str:
    """Describe the comparisons behind the ranks, and which differences are significant."""
    if ranking is None:
        return (
            "No ranking: it needs at least three methods with runs on the same two or more pairs of task and "
            "seed."
        )
    parts = [f"Ranks over {ranking.n_comparisons} comparisons, each on one task with one seed; 1 is best."]
    if ranking.critical_difference is None:
        parts.append(f"A significance test needs at least {MIN_COMPARISONS} comparisons.")
    else:
        indistinguishable = [
            rank.method
            for rank in ranking.ranks[1:]
            if rank.mean - ranking.ranks[0].mean < ranking.critical_difference
        ]
        subject = _indistinguishable_phrase(indistinguishable, len(ranking.ranks) - 1)
        parts.append(
            f"Differences of mean ranks below {ranking.critical_difference:.1f} are not significant (Nemenyi "
            f"test at 5%, which assumes independent comparisons): {subject} {ranking.ranks[0].method}."
        )
    if ranking.left_out:
        parts.append(f"Left out because of fewer runs: {', '.join(ranking.left_out)}.")
    return " ".join(parts)


def _indistinguishable_phrase(indistinguishable: Sequence[str], n_others: int) -> str:
    if not indistinguishable:
        return "all other methods differ significantly from"
    count = f"{len(indistinguishable)} of the {n_others} other methods"
    return f"{count} cannot be distinguished from"


def _rows_by_average(table: TaskTable) -> list[tuple[TaskTableRow, MeanStd]]:
    """Return the methods by average, the best first, without fully supervised ones."""
    if not table.measures:
        return []
    key = table.measures[0].key
    rows = [(row, row.averages.get(key)) for row in table.rows if FULLY_SUPERVISED not in row.method]
    rows_with_average = [(row, value) for row, value in rows if value is not None]
    return sorted(rows_with_average, key=lambda pair: -pair[1].mean)


def _best_on_task(table: TaskTable, task: str) -> set[str]:
    column = (task, table.measures[0].key)
    return table.best_methods({row.method: row.values[column] for row in table.rows if column in row.values})


def _difference_phrase(row: TaskTableRow, other: TaskTableRow) -> str:
    """Describe the paired difference between two methods."""
    test = paired_t_test(row.scores, other.scores)
    if test is None:
        return f"with too few pairs for a comparison with {other.method}"
    points = 100 * test.difference
    if abs(points) < 0.05:
        return f"level with {other.method}"
    phrase = f"{abs(points):.1f} points {'above' if points > 0 else 'below'} {other.method}"
    if test.p is None:
        return f"{phrase} ({test.n_pairs} pairs)"
    p = format_p_value(test)
    significance = "" if test.p < SIGNIFICANCE_LEVEL else ", not significant"
    return f"{phrase} (p {p if p.startswith('<') else f'= {p}'}, {test.n_pairs} pairs{significance})"
