"""End to end: a run with human annotators."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import Runner, quick
from ducats.acquisition.queries import QUERIES
from ducats.annotation import AnnotationStore, RoundRules
from ducats.data.domain import UNLABELLED, VOID
from ducats.data.toy import toy
from ducats.ledger import load_ledger
from ducats.run.factory import check_config, make_oracle
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import AwaitingLabels, UserError
from question_rounds import submit_answer

UNANIMOUS = "oracle={name: human, params: {rule: unanimous}}"


def test_two_annotators_who_must_agree_label_a_whole_run(run_quickly: Runner, tmp_path: Path) -> None:
    data = toy()
    assert data.ground_truth is not None
    true_names = {
        key: data.classes[int(label)] for key, label in zip(data.pool.keys, data.ground_truth[:], strict=True)
    }
    blind = replace(data, ground_truth=None)
    voids: list[str] = []
    for number in (1, 2):
        with pytest.raises(AwaitingLabels, match=f"round {number} waits for 10 labels[.] To answer"):
            run_quickly(UNANIMOUS, data=blind)
        store = AnnotationStore(tmp_path / "run" / "questions")
        question_round = store.open_round()
        assert question_round is not None
        spec = QUERIES[query := quick().query.name]
        assert question_round.rules == RoundRules(
            *(number, tuple(data.classes), "unanimous", 2),
            query=query,
            query_summary=spec.summary,
            explained_by=spec.explained_by,
            allow_new_classes=True,
        )
        assert all(question.guess in data.classes for question in question_round.questions)
        first, *rest = [question.id for question in question_round.questions]
        voids.append(first)
        for annotator, word in (("anna", "void"), ("bob", true_names[first])):
            submit_answer(store, first, word, annotator)
            for key in rest:
                assert submit_answer(store, key, true_names[key], annotator, seconds=2.0) is None
        with pytest.raises(AwaitingLabels, match=rf"1 of 10 labels; first: '{first}'; 1 is disputed"):
            run_quickly(UNANIMOUS, data=blind)
        submit_answer(store, first, "void", "bob")
    run_folder = run_quickly(UNANIMOUS, data=blind)
    ledger = load_ledger(run_folder)
    assert (run_folder.finished, len(ledger), ledger.seconds()) == (True, 20, 18 * 2 * 2.0)
    entries = {entry.key: entry.label for entry in ledger.entries()}
    assert len(entries) == 20  # nothing was asked twice, void included
    for key, label in entries.items():
        assert label == (VOID if key in voids else list(data.classes).index(true_names[key]))
    targets = ledger.targets()
    assert int((targets == VOID).sum()) == 2  # spent
    assert int((targets >= 0).sum()) == 18  # trained on
    assert int((targets == UNLABELLED).sum()) == len(data.pool) - 20
    assert submit_answer(store, voids[0], true_names[voids[0]], "bob") == "late"


def test_shared_answers_replace_people_and_change_no_result(run_quickly: Runner, tmp_path: Path) -> None:
    data = toy()
    assert data.ground_truth is not None
    truth = [data.classes[int(label)] for label in data.ground_truth[:]]
    blind = replace(data, ground_truth=None)
    while True:
        try:
            asked = run_quickly(data=blind, folder="asked")
            break
        except AwaitingLabels:
            store = AnnotationStore(tmp_path / "asked" / "questions")
            for question in store.open_round().questions:  # type: ignore[union-attr] # waits for answers
                submit_answer(store, question.id, truth[data.pool.keys.index(question.id)], seconds=2.0)
    shared = run_quickly(data=blind, folder="shared", shared_answers=[asked.path])  # asks nobody
    simulated = run_quickly(data=data, folder="simulated")
    labels = [entry.label for entry in load_ledger(simulated).entries()]
    for run_folder in (asked, shared):
        ledger = load_ledger(run_folder)
        assert [entry.label for entry in ledger.entries()] == labels
        assert ledger.seconds() == 20 * 2.0  # the labels count as spent
        assert run_folder.model_path.read_bytes() == simulated.model_path.read_bytes()
    with pytest.raises(UserError, match=r"--answers .* is for human annotators"):
        run_quickly(data=data, folder="simulated", shared_answers=[asked.path])
    with pytest.raises(UserError, match=r"--answers .*none is not a folder"):
        run_quickly(data=blind, folder="other", shared_answers=[tmp_path / "none"])


@pytest.mark.parametrize(
    ("oracle", "words"),
    [
        ("{name: human, params: {rule: loudest}}", "'human' .*rule must be one of"),
        ("{name: human, params: {patience: 3}}", "no parameter 'patience'; it has: rule"),
        ("{name: auto, params: {min_annotators: 0}}", "'auto' .*min_annotators must be a positive integer"),
        ("{name: ground_truth, params: {rule: unanimous}}", "the oracle 'ground_truth' has no parameters"),
    ],
)
def test_invalid_parameters_are_refused_before_images_are_read(oracle: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_config(quick(f"oracle={oracle}"))


def test_parameters_are_refused_by_the_ground_truth_oracle(tmp_path: Path) -> None:
    config = quick("oracle={name: auto, params: {rule: unanimous}}")
    with pytest.raises(UserError, match="'ground_truth' has no parameters"):
        make_oracle(config, toy(), RunFolder(tmp_path))
