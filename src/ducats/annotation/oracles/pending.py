"""Messages for a run that waits for annotators: open questions, disputes and next steps."""

import shlex
from pathlib import Path

from ducats.annotation import AnnotationStore, QuestionStatus
from ducats.annotation.summary import annotator_name
from ducats.runfolder.question_names import ANSWER_TABLES, QUESTIONS_TABLE
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.findings import pluralise

MAX_NAMED_ANNOTATORS = 5  # annotators listed in a dispute


def describe_open_images(store: AnnotationStore, round_number: int) -> str:
    """Describe the open questions of a round of images; empty if all are settled."""
    folder, statuses = store.round_folder(round_number), store.statuses(round_number)
    open_questions = [question for question, one in statuses.items() if one.state != "settled"]
    if not open_questions:
        return ""
    needs_another = any(one.state == "open" and one.votes for one in statuses.values())
    instructions = answering_instructions(store, table_instructions(folder, by_another=needs_another))
    if not any(one.votes or one.unsure_annotators for one in statuses.values()):
        labels = pluralise(len(open_questions), "label")
        return f"round {round_number} waits for {labels}. {instructions}"
    return (
        f"round {round_number} waits for {len(open_questions)} of {pluralise(len(statuses), 'label')}; "
        f"first: {open_questions[0]!r}{describe_undecided(store, round_number)}. {instructions}"
    )


def table_instructions(folder: Path, *, by_another: bool = False) -> str:
    """Return how to answer a round of images with a CSV file.

    Args:
        by_another: whether someone has to answer who has not done so.
    """
    csv_files = sorted(folder.glob(ANSWER_TABLES))
    if csv_files and not by_another:
        return f"fill in {csv_files[0]}"
    copy = "answers-NAME.csv" if by_another else "answers.csv"
    return f"copy {folder / QUESTIONS_TABLE} to {copy} there and fill in the column `label`"


def describe_undecided(store: AnnotationStore, round_number: int) -> str:
    """Return how many answered questions need another annotator, and how many are disputed; empty if none."""
    statuses = store.statuses(round_number)
    if n_answered := sum(one.state == "open" and bool(one.votes) for one in statuses.values()):
        verb = "needs" if n_answered == 1 else "need"
        return (
            f"; {n_answered} with an answer {verb} another annotator{_describe_disputes(store, round_number)}"
        )
    return _describe_disputes(store, round_number)


def _describe_disputes(store: AnnotationStore, round_number: int) -> str:
    statuses = store.statuses(round_number)
    disputed = [question for question, one in statuses.items() if one.state == "disputed"]
    if not disputed:
        return ""
    count_text = "1 is" if len(disputed) == 1 else f"{len(disputed)} are"
    rule = store.question_round(round_number).rules_for(disputed[0]).rule
    votes = describe_votes(statuses[disputed[0]])
    return f"; {count_text} disputed (rule {rule}), e.g. {disputed[0]!r}: {votes}"


def answering_instructions(store: AnnotationStore, file_instructions: str) -> str:
    """Return instructions for answering the open questions, with files or otherwise."""
    resume = "run the same command again"
    run = store.folder.parent
    if store.folder != RunFolder(run).questions_path:  # the commands would not find it
        return f"To answer, {file_instructions}. Then {resume}."
    folder = shlex.quote(str(run))
    return (
        f"To answer, open the labelling page with `ducats label {folder}`, or {file_instructions}, or use "
        f"Label Studio with `ducats push {folder} --url URL`. Then {resume}."
    )


def describe_votes(status: QuestionStatus) -> str:
    """List the votes as text.

    >>> from ducats.annotation.rules import Vote
    >>> votes = (Vote("anna", "cat", 0, 0), Vote("", "dog", 1, 1))
    >>> describe_votes(QuestionStatus("disputed", None, votes, (), 0.0))
    'anna: cat, (unknown): dog'
    """
    votes = [f"{annotator_name(vote.annotator)}: {vote.word}" for vote in status.votes[:MAX_NAMED_ANNOTATORS]]
    if len(status.votes) > MAX_NAMED_ANNOTATORS:
        votes.append(f"{len(status.votes) - MAX_NAMED_ANNOTATORS} more")
    return ", ".join(votes)
