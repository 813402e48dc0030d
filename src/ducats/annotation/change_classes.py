"""Add, rename and merge classes of a run. Does not import torch."""

from datetime import UTC, datetime

import numpy as np

from ducats.annotation.answer import parse_word
from ducats.annotation.store import AnnotationStore
from ducats.runfolder.amendments import Amendment, Correction, label_runs
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

MERGE_CHANNEL = "merged classes"  # of the amendment that changes the labels of a merged class


def current_classes(run_folder: RunFolder, store: AnnotationStore) -> ClassList:
    """Return the classes of a run; of live labelling that was never finished, those of its questions."""
    if run_folder.data_path.exists() or not store.round_numbers():
        return run_folder.classes
    classes = store.question_round(store.round_numbers()[-1]).rules.classes
    return ClassList(classes, run_folder.load_class_changes())


def add_class(run_folder: RunFolder, name: str) -> str:
    """Offer a new class to the annotators of the open round; the run knows it with its first label."""
    store = AnnotationStore(run_folder.questions_path)
    open_round = store.open_round()
    if open_round is None:
        raise UserError(f"{run_folder.path} has no open round of questions that a new class could answer")
    try:
        return store.add_class(open_round.rules.round, name)
    except ValueError as error:
        raise UserError(str(error)) from None


def rename_class(run_folder: RunFolder, old: str, new: str) -> None:
    """Give a class another name, everywhere; answers with the former name count for it."""
    store = AnnotationStore(run_folder.questions_path)
    if parse_word(new, ())[0] != "new" or new != new.strip():
        raise UserError(f"a class cannot be named {new!r}; choose another name")
    run_folder.lock()
    try:
        classes = current_classes(run_folder, store)
        if parse_word(new, [name for name in classes.current if name != old])[0] == "class":
            raise UserError(f"{new!r} is a class; to make {old!r} part of it, use --merge {old}={new}")
        changed = classes.with_renamed(old, new, len(run_folder.labelled_rounds()))
        run_folder.save_class_changes(changed.changes)
    finally:
        run_folder.release()


def merge_class(run_folder: RunFolder, name: str, into: str, annotator: str) -> int:
    """Make a class part of another, everywhere; return the number of labels that changed.

    The labels of the class become an amendment, which the run trains on from its next round. A model that was
    trained before adds the evidence of both classes.
    """
    store = AnnotationStore(run_folder.questions_path)
    run_folder.lock()
    try:
        classes = current_classes(run_folder, store)
        changed = classes.with_merged(name, into, len(run_folder.labelled_rounds()))
        numbers = store.round_numbers()
        is_live = bool(numbers) and store.question_round(numbers[-1]).rules.live
        if is_live and run_folder.load_amendments():
            raise UserError(
                f"{run_folder.path} is live labelling with corrected labels, whose classes cannot be merged; "
                f"answer the images of {name!r} again instead"
            )
        corrections = [] if is_live else _corrections(run_folder, classes, name, into)
        run_folder.save_class_changes(changed.changes)
        if corrections:
            made_at = datetime.now(UTC).isoformat(timespec="seconds")
            run_folder.append_amendment(Amendment(annotator, made_at, MERGE_CHANNEL, tuple(corrections)))
        run_folder.triage_path.unlink(missing_ok=True)  # calibrated for other classes
    finally:
        run_folder.release()
    return sum(one.n_labels for one in corrections)


def _corrections(run_folder: RunFolder, classes: ClassList, name: str, into: str) -> list[Correction]:
    """Return one correction for each image with labels of a class."""
    old, new, keys = classes.number(name), classes.number(into), run_folder.load_pool().keys
    assert old is not None
    assert new is not None
    images = set[int]()
    for round_number in run_folder.labelled_rounds():
        found = run_folder.load_round_labels(round_number, with_audit=True)
        assert found is not None
        images |= set(found.image[found.label == old].tolist())
    corrections = []
    for image in sorted(images):
        position, label, rounds = run_folder.load_image_labels(image)
        kept = label == old
        runs = label_runs(position[kept], label[kept], np.full(int(kept.sum()), new, np.int16))
        corrections.append(Correction(keys[image], int(rounds[kept].max()), name, into, image, runs))
    return corrections
