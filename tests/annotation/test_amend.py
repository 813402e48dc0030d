"""Correct labels that a run has taken: `ducats answers --amend`."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from commands import Capture, error_of, output_of
from conftest import Runner
from ducats.annotation import AnnotationStore
from ducats.annotation.amend import LabelAmender, NewLabel
from ducats.data.domain import VOID
from ducats.data.toy import toy
from ducats.deploy import load_trained_model, model_card
from ducats.ledger import Ledger, Request, TargetMaps, load_ledger
from ducats.runfolder.amendments import AMENDMENT_FILES
from ducats.runfolder.pool_file import PoolInfo
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import AwaitingLabels, UserError
from question_rounds import submit_answer, write_round

KEYS = ["a", "b", "c", "d"]


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    """A run with one labelled round, a: cat, b: void, c: cow, and the open question d."""
    store, run_folder = write_round(tmp_path / "questions"), RunFolder(tmp_path)
    run_folder.save_pool(PoolInfo(KEYS))
    for key, word in (("a", "cat"), ("b", "void"), ("c", "cow")):
        submit_answer(store, key, word)
    assert store.close_round(1) is not None
    ledger = Ledger(run_folder.labels_path, KEYS)
    ledger.append(Request(1, torch.arange(3), torch.zeros(3, dtype=torch.long)), torch.tensor([0, VOID, 2]))
    write_round(tmp_path / "questions", 2, ("d",))
    return run_folder


def test_a_label_is_corrected_and_its_history_kept(run_folder: RunFolder, capsys: Capture) -> None:
    before = (run_folder.labels_path / "round-01.npz").read_bytes()
    command = ("answers", run_folder.path, "--annotator", "eve", "--amend")
    assert "round 1, a: cat → dog" in output_of(capsys, *command, "a", " Dog")
    assert "trains on it after round 2" in output_of(capsys, *command, "a", "cow")
    assert "already has that label" in output_of(capsys, *command, "a", "cow")
    confirmed = output_of(capsys, *command, "c", "cow")
    assert "round 1, c: cow confirmed" in confirmed
    assert "train" not in confirmed
    assert (run_folder.labels_path / "round-01.npz").read_bytes() == before
    assert load_ledger(run_folder).targets().tolist() == [2, VOID, 2, -1]
    assert load_ledger(run_folder).corrected_labels().n_corrected == 1
    printed = output_of(capsys, "answers", run_folder.path)
    assert "2 corrections, 1 confirmed:" in printed
    assert "round 1, a: dog → cow, by eve, 20" in printed
    rows = list(csv.DictReader(io.StringIO(output_of(capsys, "answers", run_folder.path, "--csv"))))
    assert [(row["question"], row["word"], row["annotator"], row["channel"]) for row in rows[3:]] == [
        ("a", "dog", "eve", "amend"),
        ("a", "cow", "eve", "amend"),
        ("c", "cow", "eve", "amend"),
    ]
    assert AnnotationStore(run_folder.questions_path).statuses(1)["a"].word == "cow"


def test_an_amendment_counts_from_the_next_round_on(run_folder: RunFolder) -> None:
    LabelAmender(run_folder, "eve").amend([NewLabel("a", "dog")])
    ledger = load_ledger(run_folder)
    assert [int(ledger.targets(n)[0]) for n in (1, None)] == [0, 1]
    ledger.append(Request(2, torch.tensor([3]), torch.tensor([0])), torch.tensor([1]))
    LabelAmender(run_folder, "eve").amend([NewLabel("c", "cat")])
    for found in (ledger, load_ledger(run_folder)):
        found.refresh()
        assert [found.targets(n)[:3].tolist() for n in (1, 2)] == [[0, VOID, 2], [1, VOID, 2]]
        assert found.targets()[:3].tolist() == [1, VOID, 0]
        assert [entry.label for entry in found.entries()] == [1, VOID, 0, 1]
    for n_rounds, expected in ((1, 0), (2, 1), (None, 1)):
        round_labels = run_folder.load_round_labels(1, n_rounds)
        assert round_labels is not None
        assert round_labels.label[0] == expected


def test_a_csv_corrects_several_labels_or_none(
    run_folder: RunFolder, tmp_path: Path, capsys: Capture
) -> None:
    table = tmp_path / "fixes.csv"
    table.write_text("key,label,annotator\na,horse,\nb,cat,bob\nnone,cat,\nc,,\nb,dog,\nd,cat,\n", "utf-8")
    error = error_of(capsys, "answers", run_folder.path, "--amend", table)
    for words in (
        "fixes.csv line 2: 'horse' is not a class",
        "line 4: 'none' is not a question of this run",
        "line 6: 'b' is there twice",
        "line 7: 'd' has no label to correct: the run has not taken round 2",
    ):
        assert words in error
    assert not run_folder.load_amendments()
    table.write_text("key,label,annotator\na,dog,\nb,cat,bob\nc,cow,\n", "utf-8")
    printed = output_of(capsys, "answers", run_folder.path, "--amend", table, "--annotator", "eve")
    assert "round 1, c: cow confirmed" in printed
    assert [(one.annotator, one.channel) for one in run_folder.load_amendments()] == [
        ("eve", "fixes.csv"),
        ("bob", "fixes.csv"),
    ]
    assert load_ledger(run_folder).targets().tolist() == [1, 0, 2, -1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "unsure"), "'unsure' is not a class; use one of: cat, dog, cow or void"),
        (("A", "dog"), "'A' is not a question of this run"),
        (("a",), "--amend needs KEY CLASS"),
        (("a", "dog", "cow"), "--amend needs KEY CLASS"),
    ],
)
def test_invalid_corrections_are_refused(
    run_folder: RunFolder, capsys: Capture, arguments: tuple[str, ...], words: str
) -> None:
    assert words in error_of(capsys, "answers", run_folder.path, "--amend", *arguments)
    assert not run_folder.load_amendments()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "amendment-00001.json is missing"),
        (lambda path: path.write_text("{}"), "amendment-00001.json is corrupt"),
        (
            lambda path: path.write_text(path.read_text().replace("[0, 1, 0, 1]", "[0, 1, 0, -9]")),
            "not a run",
        ),
        (lambda path: path.write_text(path.read_text().replace('"image": 0', '"image": 9')), "has image 9"),
        (lambda path: path.rename(path.with_name("amendment-00002.json")), "00001.json is missing"),
    ],
)
def test_a_damaged_amendment_is_refused(
    run_folder: RunFolder, damage: Callable[[Path], object], words: str
) -> None:
    LabelAmender(run_folder, "eve").amend([NewLabel("a", "dog")])
    load_ledger(run_folder).append(Request(2, torch.tensor([3]), torch.tensor([0])), torch.tensor([1]))
    (path,) = run_folder.labels_path.glob(AMENDMENT_FILES)
    damage(path)
    with pytest.raises(UserError, match=words):
        load_ledger(run_folder)


def answer_open_round(store: AnnotationStore) -> list[str]:
    """Answer every question with the first class, only one of them timed; return the questions."""
    question_round = store.open_round()
    assert question_round is not None
    questions = [question.id for question in question_round.questions]
    for question in questions:
        seconds = 30.0 if question == questions[0] else None
        submit_answer(store, question, question_round.rules.classes[0], seconds=seconds)
    return questions


def test_a_run_trains_on_corrections_made_before_a_round_is_taken(
    run_quickly: Runner, tmp_path: Path
) -> None:
    data = replace(toy(), ground_truth=None)
    human = "oracle.name=human"

    def run_to_the_end(folder: str, *, amend: bool, late: bool = False) -> RunFolder:
        run_folder = RunFolder(tmp_path / folder)
        store = AnnotationStore(run_folder.questions_path)
        with pytest.raises(AwaitingLabels):
            run_quickly(human, data=data, folder=folder)
        first = answer_open_round(store)
        with pytest.raises(AwaitingLabels):
            run_quickly(human, data=data, folder=folder)
        if amend:
            LabelAmender(run_folder, "eve").amend([NewLabel(first[0], data.classes[1])])
        answer_open_round(store)
        if late:  # stopped in the middle of the last stage, and amended again

            def stop(event: object) -> None:
                if getattr(event, "epoch", 0) == 3:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                run_quickly(human, data=data, folder=folder, on_event=stop)
            LabelAmender(run_folder, "eve").amend([NewLabel(first[1], data.classes[1])])
        return run_quickly(human, data=data, folder=folder)

    plain = run_to_the_end("plain", amend=False)
    amended = run_to_the_end("amended", amend=True)
    stopped = run_to_the_end("stopped", amend=True, late=True)
    weights = [load_file(one.model_path) for one in (plain, amended, stopped)]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert all(torch.equal(weights[1][name], weights[2][name]) for name in weights[1])
    assert load_ledger(stopped).corrected_labels(2).n_corrected == 1
    assert load_ledger(stopped).corrected_labels().n_corrected == 2
    card = "\n".join(model_card._training_lines(load_trained_model(stopped.path)))
    assert "- acquired labels: 20 target images in 2 rounds, 1 of them corrected" in card
    assert "- annotation: 1.0 minutes (2 of 20 answers timed)" in card


def test_pixels_are_corrected_by_a_label_png(run_pixels: Runner, tmp_path: Path, capsys: Capture) -> None:
    run_folder = run_pixels()
    ledger = load_ledger(run_folder)
    key = ledger.keys[1]
    position, label = ledger.image_labels(1)
    assert ledger.sizes is not None
    height, width = ledger.sizes[1].tolist()
    label_map = np.full(height * width, 254, np.uint8)
    label_map[position[:3]] = (label[:3] + 1) % 3
    label_map[(position[-1] + 1) % (height * width)] = 0  # ignored unless labelled
    Image.fromarray(label_map.reshape(height, width)).save(tmp_path / "fix.png")
    printed = output_of(capsys, "answers", run_folder.path, "--amend", key, tmp_path / "fix.png")
    assert "the run is finished and its model is not trained again" in printed
    corrected = TargetMaps(load_ledger(run_folder), None).at_label_resolution(1).flatten()
    assert corrected[position[:3]].tolist() == ((label[:3] + 1) % 3).tolist()
    assert load_ledger(run_folder).image_labels(1, 2).label.equal(label)
    assert f"round 1, {key}: " in output_of(capsys, "answers", run_folder.path)
    Image.fromarray(label_map.reshape(height, width)[1:]).save(tmp_path / "fix.png")
    assert "but its mask is" in error_of(
        capsys, "answers", run_folder.path, "--amend", key, tmp_path / "fix.png"
    )
    assert "give a label PNG" in error_of(capsys, "answers", run_folder.path, "--amend", key, "road")
