"""What came out over all tasks, in words made from the table; nothing is claimed that pairs cannot show."""

from collections.abc import Sequence

from ducats.report.across import CEILING, Row, Table, chance, paired
from ducats.report.comparison.ranks import ENOUGH, Ranks
from ducats.report.tables import Spread

OURS, BASELINE = "duc", "random"  # whose place is always said
SURE = 0.05  # p below which a difference is not put down to luck


def sentences(table: Table) -> list[str]:
    """Who has the highest average, by how much, on how many tasks; and where our method stands."""
    ranked = _ranked(table)
    if not ranked:
        return ["No method has a finished run of every task, so there is no average to compare."]
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
            found.append(f"{OURS} is number {place} of {len(ranked)}, {_lead(row, best)}.")
    return found


def about_ranks(ranks: Ranks | None) -> str:
    """What the ranks are over, and what their distance means."""
    if ranks is None:
        return (
            "There is no ranking: it takes three methods that were all run on the same two pairs of task and "
            "seed."
        )
    said = [f"Ranks over {ranks.comparisons} comparisons, each on one task with one seed; 1 is the best."]
    if ranks.gap is None:
        said.append(f"Fewer than {ENOUGH} are too few to say which distances are more than luck.")
    else:
        level = [r.method for r in ranks.ranks[1:] if r.mean - ranks.ranks[0].mean < ranks.gap]
        said.append(
            f"Mean ranks closer than {ranks.gap:.1f} may be luck (Nemenyi's test at 5%, which takes every "
            f"comparison for independent): {_share(level, len(ranks.ranks) - 1)} {ranks.ranks[0].method}."
        )
    if ranks.left_out:
        said.append(f"Left out for having fewer runs: {', '.join(ranks.left_out)}.")
    return " ".join(said)


def _share(level: Sequence[str], others: int) -> str:
    if not level:
        return "every other method is further than that from"
    count = f"{len(level)} of {others} other methods"
    return f"so {count} cannot be told from"


def _ranked(table: Table) -> list[tuple[Row, Spread]]:
    """Methods by their average (of one task, their mean), the best first; less what all labels give."""
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
    """How far a method is from another, over their pairs."""
    test = paired(row.scores, other.scores)
    if test is None:
        return f"with too few pairs to compare it with {other.method}"
    points = 100 * test.difference
    if abs(points) < 0.05:
        return f"level with {other.method}"
    said = f"{abs(points):.1f} points {'above' if points > 0 else 'below'} {other.method}"
    if test.p is None:
        return f"{said} ({test.pairs} pairs)"
    p = chance(test)
    luck = "" if test.p < SURE else ", so it may be luck"
    return f"{said} (p {p if p.startswith('<') else f'= {p}'}, {test.pairs} pairs{luck})"
