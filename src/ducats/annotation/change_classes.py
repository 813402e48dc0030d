"""Add, rename and merge classes of a run. Does not import torch."""

from datetime import UTC, datetime

import numpy as np

from ducats.annotation.answer import new_class_name, parse_word
from ducats.annotation.store import AnnotationStore
from ducats.runfolder import checksums
from ducats.runfolder.amendments import MERGE_CHANNEL, Amendment, Correction, label_runs
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError


def current_classes(run_folder: RunFolder, store: AnnotationStore) -> ClassList:
    """Return the classes of a run; of live labelling that was never finished, those of its questions."""
    if run_folder.data_path.exists() or not store.round_numbers():
        return run_folder.classes
    classes = store.question_round(store.round_numbers()[-1]).rules.classes
    return ClassList(classes, run_folder.load_class_changes())


def _offered_classes(store: AnnotationStore) -> tuple[str, ...]:
    """Return the classes that annotators can choose in the open round."""
    open_round = store.open_round()
    return () if open_round is None else open_round.rules.classes


def add_class(run_folder: RunFolder, name: str) -> str:
    """Offer a new class to the annotators of the open round; the run knows it with its first label."""
    store = AnnotationStore(run_folder.questions_path)
    open_round = store.open_round()
    if open_round is None:
        raise UserError(f"{run_folder.path} has no open round of questions that a new class could answer")
    return store.add_class(open_round.rules.round, name)


def rename_class(run_folder: RunFolder, old: str, new: str) -> None:
    """Give a class another name, everywhere; answers with the former name count for it."""
    store, new = AnnotationStore(run_folder.questions_path), new_class_name(new)
    run_folder.lock()
    try:
        classes, offered = current_classes(run_folder, store), _offered_classes(store)
        others = [name for name in dict.fromkeys((*classes.current, *offered)) if name != old]
        kind, same = parse_word(new, others)
        if kind == "class":
            raise UserError(f"{same!r} is a class; to make {old!r} part of it, use --merge {old}={same}")
        changed = classes.with_renamed(old, new, len(run_folder.labelled_rounds()), offered=offered)
        run_folder.save_class_changes(changed.changes)
    finally:
        run_folder.release()


def merge_class(run_folder: RunFolder, name: str, into: str, annotator: str) -> int:
    """Make a class part of another, everywhere; return the number of labels that changed.

    The labels of the class become an amendment, which the run trains on from its next round. A model that was
    trained before adds the evidence of both classes. After a kill, call it again.
    """
    store = AnnotationStore(run_folder.questions_path)
    run_folder.lock()
    try:
        classes, offered = current_classes(run_folder, store), _offered_classes(store)
        changed = classes.with_merged(name, into, len(run_folder.labelled_rounds()), offered=offered)
        numbers = store.round_numbers()
        is_live = bool(numbers) and store.question_round(numbers[-1]).rules.live
        if is_live and run_folder.load_amendments():
            raise UserError(
                f"{run_folder.path} is live labelling with corrected labels, whose classes cannot be merged; "
                f"answer the images of {name!r} again instead"
            )
        corrections = [] if is_live else _corrections(run_folder, classes, name, into)
        checksums.delete(run_folder.triage_path)  # calibrated for other classes
        if corrections:  # before the classes: afterwards, the class could not be merged again
            made_at = datetime.now(UTC).isoformat(timespec="seconds")
            run_folder.append_amendment(Amendment(annotator, made_at, MERGE_CHANNEL, tuple(corrections)))
        run_folder.save_class_changes(changed.changes)
    finally:
        run_folder.release()
    return sum(one.n_labels for one in corrections)


def _corrections(run_folder: RunFolder, classes: ClassList, name: str, into: str) -> list[Correction]:
    """Return one correction for each image with labels of a class."""
    old, new, keys = classes.number(name), classes.number(into), run_folder.load_pool().keys
    if old is None:
        return []  # no label in a closed round
    assert new is not None
    images, positions, rounds = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for round_number in run_folder.labelled_rounds():
        found = run_folder.load_round_labels(round_number, with_audit=True)
        assert found is not None
        is_old = found.label == old
        images.append(found.image[is_old])
        positions.append(found.position[is_old])
        rounds.append(np.full(len(images[-1]), round_number))
    image, position, acquired = np.concatenate(images), np.concatenate(positions), np.concatenate(rounds)
    order = np.argsort(image, kind="stable")
    corrections = []
    for rows in np.split(order, np.flatnonzero(np.diff(image[order])) + 1) if len(order) else ():
        number = int(image[rows[0]])
        runs = label_runs(position[rows], np.full(len(rows), old), np.full(len(rows), new))
        corrections.append(Correction(keys[number], int(acquired[rows].max()), name, into, number, runs))
    return corrections
