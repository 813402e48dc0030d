"""What a run says while it waits for people: what is open, what is disputed, and how to go on."""

from ducats.answers import Desk, Standing

NAMED = 5  # people of a dispute


def for_images(desk: Desk, number: int) -> str:
    """A round of images that waits, in a sentence; empty if all is settled."""
    folder, standings = desk.home(number), desk.standings(number)
    left = [question for question, one in standings.items() if one.state != "settled"]
    if not left:
        return ""
    files = sorted(folder.glob("answers*.csv"))
    on = ways(
        desk,
        f"fill them in in {files[0]}"
        if files
        else f"copy {folder / 'questions.csv'} to answers.csv beside it and fill in the column `label`",
    )
    if not any(one.votes or one.unsure for one in standings.values()):
        return f"round {number} waits for {len(left)} label{'' if len(left) == 1 else 's'}: {on}"
    return (
        f"round {number} waits for {len(left)} of {len(standings)} labels, first {left[0]!r}"
        f"{disputes(desk, number)}: {on}"
    )


def disputes(desk: Desk, number: int) -> str:
    """How many questions are disputed, and the first of them; empty if none is."""
    standings = desk.standings(number)
    disputed = [question for question, one in standings.items() if one.state == "disputed"]
    if not disputed:
        return ""
    many, rule = "1 is" if len(disputed) == 1 else f"{len(disputed)} are", desk.sheet(number).terms.rule
    said = who_says_what(standings[disputed[0]])
    return f"; {many} disputed (rule {rule}), of {disputed[0]!r} {said}"


def ways(desk: Desk, files: str) -> str:
    """How to go on.

    Args:
        desk: where the questions lie.
        files: how to answer with files.
    """
    again = "give the same command again"
    if desk.folder.name != "questions":  # no run's folder: the commands would not find it
        return f"{files}, and {again}"
    run = desk.folder.parent
    return (
        f"answer on a page with `ducats label {run}`, or {files}, or use Label Studio with "
        f"`ducats push {run}`; then {again}"
    )


def who_says_what(one: Standing) -> str:
    """In words.

    >>> from ducats.answers.rules import Vote
    >>> votes = (Vote("anna", "cat", 0, 0), Vote("", "dog", 1, 1))
    >>> who_says_what(Standing("disputed", None, votes, (), 0.0))
    'anna says cat and somebody says dog'
    """
    said = [f"{vote.who or 'somebody'} says {vote.word}" for vote in one.votes[:NAMED]]
    if len(one.votes) > NAMED:
        said.append(f"{len(one.votes) - NAMED} more say something")
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
