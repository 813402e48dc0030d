"""Messages for a run that waits for annotators: open questions, disputes and next steps."""

from ducats.answers import Desk, Standing

NAMED = 5  # annotators listed in a dispute


def for_images(desk: Desk, number: int) -> str:
    """Describe the open questions of a round of images; empty if all are settled."""
    folder, standings = desk.home(number), desk.standings(number)
    left = [question for question, one in standings.items() if one.state != "settled"]
    if not left:
        return ""
    files = sorted(folder.glob("answers*.csv"))
    on = ways(
        desk,
        f"fill in {files[0]}"
        if files
        else f"copy {folder / 'questions.csv'} to answers.csv there and fill in the column `label`",
    )
    if not any(one.votes or one.unsure for one in standings.values()):
        return f"round {number} waits for {len(left)} label{'' if len(left) == 1 else 's'}. {on}"
    return (
        f"round {number} waits for {len(left)} of {len(standings)} labels; first: {left[0]!r}"
        f"{disputes(desk, number)}. {on}"
    )


def disputes(desk: Desk, number: int) -> str:
    """Return the number of disputed questions and the first one; empty if there are none."""
    standings = desk.standings(number)
    disputed = [question for question, one in standings.items() if one.state == "disputed"]
    if not disputed:
        return ""
    many, rule = "1 is" if len(disputed) == 1 else f"{len(disputed)} are", desk.sheet(number).terms.rule
    said = who_says_what(standings[disputed[0]])
    return f"; {many} disputed (rule {rule}), e.g. {disputed[0]!r}: {said}"


def ways(desk: Desk, files: str) -> str:
    """Return instructions for answering the open questions.

    Args:
        desk: the store with the questions.
        files: instructions for answering with files.
    """
    again = "run the same command again"
    if desk.folder.name != "questions":  # not in a run folder: the commands would not find it
        return f"To answer, {files}. Then {again}."
    run = desk.folder.parent
    return (
        f"To answer, open the labelling page with `ducats label {run}`, or {files}, or use Label Studio with "
        f"`ducats push {run}`. Then {again}."
    )


def who_says_what(one: Standing) -> str:
    """List the votes as text.

    >>> from ducats.answers.rules import Vote
    >>> votes = (Vote("anna", "cat", 0, 0), Vote("", "dog", 1, 1))
    >>> who_says_what(Standing("disputed", None, votes, (), 0.0))
    'anna: cat, (unknown): dog'
    """
    said = [f"{vote.who or '(unknown)'}: {vote.word}" for vote in one.votes[:NAMED]]
    if len(one.votes) > NAMED:
        said.append(f"{len(one.votes) - NAMED} more")
    return ", ".join(said)
