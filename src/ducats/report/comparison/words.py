"""The result over all tasks in sentences, based on paired tests."""

from collections.abc import Sequence

from ducats.report.across import CEILING, Row, Table, chance, paired
from ducats.report.comparison.ranks import ENOUGH, Ranks
from ducats.report.tables import Spread

OURS, BASELINE = "duc", "random"  # the best method is compared with these
SURE = 0.05  # significance level


def sentences(table: Table) -> list[str]:
    """State the method with the highest average, its lead, the number of tasks it wins, and our rank."""
    ranked = _ranked(table)
    if not ranked:
        return ["No method has a finished run of every task, so averages cannot be compared."]
    (best, mean), *others = ranked
    score = table.kind.score
    many = len(table.tasks) > 1
    over = f"average {score} over {len(table.tasks)} tasks" if many else f"mean {score}"
    reached = f"{100 * mean.mean:.1f}%"
    if mean.deviation is not None:
        reached += f" ± {100 * mean.deviation:.1f}"
    article = "the highest" if others else "an" if many else "a"
    said = f"{best.method} has {article} {over}: {reached}"
    rivals = [row for row, _ in others[:1]]
    rivals += [row for row, _ in others[1:] if row.method == BASELINE]
    found = [f"{said}{''.join(f', {_lead(best, rival)}' for rival in rivals)}."]
    firsts = sum(best.method in _best(table, task) for task in table.tasks)
    if others and many:
        found.append(f"{best.method} is first on {firsts} of {len(table.tasks)} tasks.")
    for place, (row, _) in enumerate(ranked[1:], start=2):
        if row.method == OURS:
            found.append(f"{OURS} ranks {place} of {len(ranked)}, {_lead(row, best)}.")
    return found


def about_ranks(ranks: Ranks | None) -> str:
    """Describe the comparisons behind the ranks, and which differences are significant."""
    if ranks is None:
        return (
            "No ranking: it needs at least three methods with runs on the same two or more pairs of task and "
            "seed."
        )
    said = [f"Ranks over {ranks.comparisons} comparisons, each on one task with one seed; 1 is best."]
    if ranks.gap is None:
        said.append(f"A significance test needs at least {ENOUGH} comparisons.")
    else:
        level = [r.method for r in ranks.ranks[1:] if r.mean - ranks.ranks[0].mean < ranks.gap]
        said.append(
            f"Differences of mean ranks below {ranks.gap:.1f} are not significant (Nemenyi test at 5%, which "
            f"assumes independent comparisons): {_share(level, len(ranks.ranks) - 1)} "
            f"{ranks.ranks[0].method}."
        )
    if ranks.left_out:
        said.append(f"Left out because of fewer runs: {', '.join(ranks.left_out)}.")
    return " ".join(said)


def _share(level: Sequence[str], others: int) -> str:
    if not level:
        return "all other methods differ significantly from"
    count = f"{len(level)} of the {others} other methods"
    return f"{count} cannot be distinguished from"


def _ranked(table: Table) -> list[tuple[Row, Spread]]:
    """Return the methods by average, the best first, without fully supervised ones."""
    if not table.measures:
        return []
    key = table.measures[0].key
    found = [(row, row.average.get(key)) for row in table.rows if CEILING not in row.method]
    known = [(row, value) for row, value in found if value is not None]
    return sorted(known, key=lambda pair: -pair[1].mean)


def _best(table: Table, task: str) -> set[str]:
    column = (task, table.measures[0].key)
    return table.best({row.method: row.values[column] for row in table.rows if column in row.values})


def _lead(row: Row, other: Row) -> str:
    """Describe the paired difference between two methods."""
    test = paired(row.scores, other.scores)
    if test is None:
        return f"with too few pairs for a comparison with {other.method}"
    points = 100 * test.difference
    if abs(points) < 0.05:
        return f"level with {other.method}"
    said = f"{abs(points):.1f} points {'above' if points > 0 else 'below'} {other.method}"
    if test.p is None:
        return f"{said} ({test.pairs} pairs)"
    p = chance(test)
    luck = "" if test.p < SURE else ", not significant"
    return f"{said} (p {p if p.startswith('<') else f'= {p}'}, {test.pairs} pairs{luck})"
