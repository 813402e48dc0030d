"""End to end: a run with human annotators."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import Runner, quick
from ducats.answers import Desk
from ducats.data import toy
from ducats.domain import UNLABELLED, VOID
from ducats.errors import AwaitingLabels, UserError
from ducats.factory import check_components, make_oracle
from ducats.queries import QUERIES
from ducats.run_folder import RunFolder

AGREE = "oracle={name: human, params: {rule: agree}}"


def test_two_annotators_who_must_agree_label_a_whole_run(run_quickly: Runner, tmp_path: Path) -> None:
    shift = toy()
    assert shift.ground_truth is not None
    truth = {
        key: shift.classes[int(label)]
        for key, label in zip(shift.pool.keys, shift.ground_truth[:], strict=True)
    }
    blind = replace(shift, ground_truth=None)
    voids: list[str] = []
    for number in (1, 2):
        with pytest.raises(AwaitingLabels, match=f"round {number} waits for 10 labels[.] To answer"):
            run_quickly(AGREE, shift=blind)
        desk = Desk(tmp_path / "run" / "questions")
        sheet = desk.current()
        assert sheet is not None
        assert (sheet.terms.round, sheet.terms.rule, sheet.terms.people) == (number, "agree", 2)
        query = quick().query.name
        assert (sheet.terms.query, sheet.terms.why) == (query, QUERIES[query].summary)
        assert all(question.guess in shift.classes for question in sheet.questions)
        first, *rest = [question.id for question in sheet.questions]
        voids.append(first)
        for who in ("anna", "bob"):
            said = [{"question": key, "word": truth[key], "who": who, "seconds": 2.0} for key in rest]
            said.append({"question": first, "word": "void" if who == "anna" else truth[first], "who": who})
            assert {one.refused for one in desk.receive(said, via="test")} == {None}
        with pytest.raises(AwaitingLabels, match=rf"1 of 10 labels; first: '{first}'; 1 is disputed"):
            run_quickly(AGREE, shift=blind)
        desk.receive([{"question": first, "word": "void", "who": "bob"}], via="test")
    home = run_quickly(AGREE, shift=blind)
    ledger = home.load_ledger()
    assert (home.finished, len(ledger), ledger.seconds()) == (True, 20, 18 * 2 * 2.0)
    entries = {entry.key: entry.label for entry in ledger.entries()}
    assert len(entries) == 20  # nothing was asked twice, void included
    for key, label in entries.items():
        assert label == (VOID if key in voids else list(shift.classes).index(truth[key]))
    targets = ledger.targets()
    assert int((targets == VOID).sum()) == 2  # spent
    assert int((targets >= 0).sum()) == 18  # trained on
    assert int((targets == UNLABELLED).sum()) == len(shift.pool) - 20
    late = Desk(tmp_path / "run" / "questions").receive(
        [{"question": voids[0], "word": truth[voids[0]], "who": "bob"}], via="test"
    )
    assert late[0].refused == "late"


@pytest.mark.parametrize(
    ("oracle", "words"),
    [
        (
            "{name: people, params: {rule: loudest}}",
            "'people' does not accept the parameters .*rule must be one of",
        ),
        ("{name: people, params: {patience: 3}}", "no parameter 'patience'; it has: rule"),
        (
            "{name: auto, params: {people: 0}}",
            "'auto' does not accept .*people must be a positive integer",
        ),
        ("{name: truth, params: {rule: agree}}", "the oracle 'truth' has no parameters"),
    ],
)
def test_invalid_parameters_are_refused_before_images_are_read(oracle: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_components(quick(f"oracle={oracle}"))


def test_parameters_are_refused_by_the_ground_truth_oracle(tmp_path: Path) -> None:
    config = quick("oracle={name: auto, params: {rule: agree}}")
    with pytest.raises(UserError, match="'truth' has no parameters"):
        make_oracle(config, toy(), RunFolder(tmp_path))
