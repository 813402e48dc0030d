"""Suspicious answers: the model is sure of another class."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from commands import Capture, error_of, output_of
from ducats.annotation import AnnotationStore, Question, QuestionRound, RoundRules
from ducats.annotation.amend import LabelAmender, NewLabel
from ducats.annotation.change_classes import merge_class
from ducats.annotation.suspicious import suspicious_answers
from ducats.ledger import Ledger, Request
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.pool_file import PoolInfo
from ducats.runfolder.run_folder import RunFolder
from ducats.runfolder.snapshot_files import Snapshot, write_snapshot_file
from question_rounds import CLASSES, submit_answer

# Answer, prediction when asked; prediction of the model trained on it.
CASES = {
    "agrees": ("cat", ("cat", 0.99), ("cat", 0.99)),
    "sure": ("cat", ("dog", 0.9), ("cat", 0.9)),
    "unsure": ("cat", ("dog", 0.7), ("cat", 0.9)),
    "still": ("cow", ("dog", 0.5), ("dog", 0.85)),
    "both": ("void", ("dog", 0.81), ("cat", 0.97)),
}


def write_snapshot(folder: Path, **predicted: int) -> None:
    """Write a snapshot in which every image but the last of the pool is labelled.

    Args:
        predicted: numbers of the predicted classes, instead of those in ``CASES``.
    """
    n = len(CASES)
    columns: dict[str, Any] = {field.name: np.zeros(n) for field in fields(Snapshot)}
    columns |= {name: np.zeros((n, 1)) for name in ("features", "z", "top_classes", "log_alpha")}
    columns |= {"round": 0, "epoch": 1, "pool": n + 1, "source": 0, "explained_variance_ratio": np.zeros(1)}
    columns |= {"image": np.arange(n), "is_target": np.ones(n, bool), "is_labelled": np.ones(n, bool)}
    columns["predicted"] = np.array(
        [predicted.get(key, CLASSES.index(later[0])) for key, (_, _, later) in CASES.items()]
    )
    columns["probability"] = np.array([later[1] for _, _, later in CASES.values()])
    write_snapshot_file(folder, Snapshot(**columns))


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    """A finished round with the answers of ``CASES``."""
    run_folder, keys = RunFolder(tmp_path), list(CASES)
    store = AnnotationStore(run_folder.questions_path)
    questions = [
        Question(number, key, key, "", guess=guess, probability=probability)
        for number, (key, (_, (guess, probability), _)) in enumerate(CASES.items(), start=1)
    ]
    QuestionRound.write(store.round_folder(1), RoundRules(1, CLASSES), questions)
    for key, (word, _, _) in CASES.items():
        submit_answer(store, key, word)
    assert store.close_round(1) is not None
    run_folder.save_pool(PoolInfo(keys))
    run_folder.data_path.write_text(yaml.safe_dump({"classes": list(CLASSES)}))
    request = Request(1, torch.arange(len(keys)), torch.zeros(len(keys), dtype=torch.long))
    Ledger(run_folder.labels_path, keys).append(request, torch.tensor([0, 0, 0, 2, -2]))
    return run_folder


def found(run_folder: RunFolder, *threshold: float) -> list[tuple[str, str, str]]:
    answers = suspicious_answers(run_folder, *threshold)
    return [(one.question.id, str(one.asked), str(one.trained)) for one in answers]


def test_the_prediction_before_the_answer_counts_and_the_one_after_training_on_it(
    run_folder: RunFolder,
) -> None:
    assert found(run_folder) == [("sure", "dog (90 %)", "None"), ("both", "dog (81 %)", "None")]
    write_snapshot(run_folder.path)
    assert found(run_folder) == [
        ("both", "dog (81 %)", "cat (97 %)"),
        ("sure", "dog (90 %)", "None"),
        ("still", "None", "dog (85 %)"),
    ]
    assert [key for key, _, _ in found(run_folder, 0.6)] == ["both", "sure", "still", "unsure"]
    LabelAmender(run_folder, "eve").amend([NewLabel("sure", "dog"), NewLabel("both", "cow")])
    assert [key for key, _, _ in found(run_folder)] == ["still"]  # a person has looked at the others again
    LabelAmender(run_folder, "eve").amend([NewLabel("still", "cow")])
    assert found(run_folder) == []
    assert run_folder.count_unused_corrections() == 2


def test_the_command_lists_them(run_folder: RunFolder, capsys: Capture) -> None:
    write_snapshot(run_folder.path)
    line = (
        "round 1, both: void, but the model predicted dog (81 %) and predicts cat (97 %) after training on it"
    )
    summary = output_of(capsys, "answers", run_folder.path)
    assert "3 suspicious answers: the model was at least 80 % sure" in summary
    assert line in summary
    listed = output_of(capsys, "answers", run_folder.path, "--suspicious", "0.95")
    assert "1 suspicious answer: the model was at least 95 % sure" in listed
    assert "annotator" not in listed
    assert "from 0 to 1" in error_of(capsys, "answers", run_folder.path, "--suspicious", "80")


def test_a_corrupt_snapshot_is_named(run_folder: RunFolder, capsys: Capture) -> None:
    write_snapshot(run_folder.path)
    (run_folder.snapshots_path / "final.npz").write_bytes(b"")
    summary = output_of(capsys, "answers", run_folder.path)
    assert "final.npz is corrupt" in summary.replace("\n", "")
    assert "2 suspicious answers" in summary


def test_a_prediction_of_a_class_that_was_added_after_the_answer_is_named(run_folder: RunFolder) -> None:
    run_folder.save_class_changes(ClassList(CLASSES).with_added(["horse", "emu"], 2).changes)
    write_snapshot(run_folder.path, sure=len(CLASSES) + 1)
    assert ("sure", "dog (90 %)", "emu (90 %)") in found(run_folder)


def test_merging_classes_reviews_no_answer(run_folder: RunFolder, capsys: Capture) -> None:
    assert merge_class(run_folder, "cat", "cow", "ada") == 3
    sure, both = suspicious_answers(run_folder)
    assert (sure.question.id, sure.label) == ("sure", "cow")
    assert both.question.id == "both"
    assert run_folder.count_unused_corrections() == 0
    assert "correction" not in output_of(capsys, "answers", run_folder.path)
    result = LabelAmender(run_folder, "eve").amend([NewLabel("sure", "cow")])
    assert not result.unchanged  # she confirms it
    assert [one.question.id for one in suspicious_answers(run_folder)] == ["both"]
