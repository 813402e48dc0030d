"""Classes that appear during a run: the model grows, training continues, all commands know them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import FROZEN, Runner
from ducats.annotation import AnnotationStore
from ducats.annotation.change_classes import add_class, merge_class, rename_class
from ducats.data.domain import AdaptationData, Domain
from ducats.data.toy import toy
from ducats.deploy import load_trained_model
from ducats.ledger import load_ledger
from ducats.report.run_reader import read_run
from ducats.report.run_section.class_results import read_class_results
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import AwaitingLabels, UserError
from present import present
from question_rounds import submit_answer


def open_set() -> AdaptationData:
    """Toy data whose source lacks the last class."""
    data = toy()
    *known, missing = data.classes
    source, labels = data.source, present(data.source.labels)[:]
    index = (labels < len(known)).nonzero().squeeze(1)
    images = replace(
        source.images,
        pixels=source.images.pixels[index],
        keys=tuple(source.images.keys[i] for i in index.tolist()),
    )
    return replace(
        data,
        source=Domain(images, labels[index], tuple(known)),
        target_only_classes=(missing,),
    )


LONGER = ("train.epochs=6", "train.steps_per_epoch=12", "acquisition.budget=30")


def test_a_class_that_the_source_lacks_is_learnt_with_its_first_labels(run_quickly: Runner) -> None:
    data = open_set()
    run_folder = run_quickly(*LONGER, method="duc", data=data)
    classes, ledger = run_folder.classes, load_ledger(run_folder)
    assert classes.names == (*data.classes, data.target_only_classes[0])
    assert classes.added == ((data.target_only_classes[0], 1),)
    number, truth = len(data.classes), present(data.ground_truth)
    label_of = dict(zip(data.pool.keys, truth[:].tolist(), strict=True))
    assert all(entry.label == label_of[entry.key] for entry in ledger.entries())
    assert run_folder.data_summary["classes"] == list(data.classes)  # what the data had
    first, *_, last = run_folder.stages()
    assert len(first["class_accuracy"]) == len(last["class_accuracy"]) == number + 1
    assert first["class_accuracy"][number] == 0.0  # an error as long as the class is unknown
    assert last["class_accuracy"][number] > 0.3
    (*_, record) = run_folder.read_records("added_classes")
    assert record["predicted"][str(number)] > 0
    trained = load_trained_model(run_folder.path)
    assert trained.classes == classes.names
    head = [p for p in trained.model.network.parameters() if p.ndim == 2][-1]
    assert head.shape[0] == number + 1


def test_a_killed_run_adds_the_same_classes(run_quickly: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_quickly(*LONGER, method="ducats", data=open_set(), folder="whole")

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for folder, step in (
        ("before", "ducats.runfolder.run_folder.save_class_changes"),
        ("between", "ducats.ledger.label_ledger.write_label_file"),  # classes are saved, their labels are not
        ("after", "ducats.run.checkpoint._with_added_classes"),
        ("late", "ducats.run.loop.save_model"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(step, die)
            with pytest.raises(KeyboardInterrupt):
                run_quickly(*LONGER, method="ducats", data=open_set(), folder=folder)
        found = run_quickly(*LONGER, method="ducats", data=open_set(), folder=folder)
        assert found.model_path.read_bytes() == expected.model_path.read_bytes()
        assert [e.label for e in load_ledger(found).entries()] == [
            e.label for e in load_ledger(expected).entries()
        ]


@pytest.mark.parametrize("objective", ["duc", "mme", "mrkld", "sdm", "tqs", "waal"])
def test_objectives_continue_with_a_new_class(run_quickly: Runner, objective: str) -> None:
    settings = (
        f"objective={{name: {objective}, params: {{}}}}",
        "acquisition.budget=30",
        "train.ema_decay=0.9",
    )
    assert len(run_quickly(*settings, method="random", data=open_set()).classes) == 4


def test_a_frozen_backbone_and_an_audit_know_a_new_class(run_quickly: Runner) -> None:
    settings = (*FROZEN, "acquisition={budget: 40, audit: 20}", "train.optimiser=adamw")
    run_folder = run_quickly(*settings, method="ducats", data=replace(open_set(), test=None))
    *_, audit = run_folder.read_records("audit")
    assert list(audit["classes"]) == list(run_folder.classes.names)
    assert "classes were added" in run_folder.read_records("random_gain")[0]["unknown"]
    assert load_trained_model(run_folder.path).classes[-1] == open_set().target_only_classes[0]


def test_annotators_add_rename_and_merge_classes(run_quickly: Runner, tmp_path: Path) -> None:
    data = replace(toy(), ground_truth=None)
    truth = dict(zip(data.pool.keys, present(toy().ground_truth)[:].tolist(), strict=True))
    names = [*data.classes[:3], "lorry"]
    options = ("oracle.name=human", "acquisition.budget=30")
    with pytest.raises(AwaitingLabels):
        run_quickly(*options, data=data)
    run_folder, store = RunFolder(tmp_path / "run"), AnnotationStore(tmp_path / "run" / "questions")
    for question in present(store.open_round()).questions:
        submit_answer(store, question.id, names[truth[question.key]], "anna")
    with pytest.raises(AwaitingLabels):
        run_quickly(*options, data=data)
    assert run_folder.classes.added == (("lorry", 1),)
    assert present(store.open_round()).rules.classes == (*data.classes, "lorry")

    rename_class(run_folder, "lorry", "truck")
    add_class(run_folder, "van")
    open_round = present(store.open_round())
    assert open_round.rules.classes == (*data.classes, "truck", "van")
    former = [one for one in store.answers() if one.word == "truck"]
    assert former
    assert not [one for one in store.answers() if one.word == "lorry"]
    for i, question in enumerate(open_round.questions):
        word = ["lorry", "van"][i % 2] if truth[question.key] == 3 else names[truth[question.key]]
        submit_answer(store, question.id, word, "anna")  # the former name still counts
    words = {one.word for one in store.answers(open_round.questions[0].id)}
    assert "lorry" not in words
    run_folder = run_quickly(*options, data=data)
    classes = run_folder.classes
    n_trucks = sum(e.label == classes.number("truck") for e in load_ledger(run_folder).entries())
    n_vans = sum(e.label == classes.number("van") for e in load_ledger(run_folder).entries())
    assert classes.names[4:] == ("truck", "van")

    pixels = data.pool.pixels[:].float() / 255
    before = load_trained_model(run_folder.path)
    with torch.no_grad():
        separate = before.model.eval()(pixels).z.exp()
    assert merge_class(run_folder, "van", "truck", "ben") == n_vans
    after = load_trained_model(run_folder.path)
    assert after.classes == (*data.classes, "truck")
    with torch.no_grad():
        merged = after.model.eval()(pixels).z.exp()
    torch.testing.assert_close(merged[:, :4], separate[:, :4])
    torch.testing.assert_close(merged[:, 4], separate[:, 4] + separate[:, 5])
    number = classes.number("truck")
    assert sum(e.label == number for e in load_ledger(run_folder).entries()) == n_trucks + n_vans
    assert [change.kind for change in run_folder.load_class_changes()] == [
        *("added", "renamed", "added", "merged")
    ]
    assert "van" not in {one.word for one in store.answers()}


def test_a_merge_that_was_killed_can_be_repeated(
    run_quickly: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = run_quickly("acquisition.budget=30")
    old, into, *_ = run_folder.classes.current
    n_labels = run_folder.count_class_labels()

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    for step in ("append_amendment", "save_class_changes"):
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, step, die)
            with pytest.raises(KeyboardInterrupt):
                merge_class(run_folder, old, into, "ada")
        assert run_folder.classes.current[0] == old
    merge_class(run_folder, old, into, "ada")
    assert run_folder.classes.current[0] == into
    assert {entry.label for entry in load_ledger(run_folder).entries()} == set(n_labels) - {0}
    assert run_folder.count_class_labels()[1] == n_labels[0] + n_labels[1]


def test_classes_that_are_merged_while_a_run_is_stopped(
    run_quickly: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = toy()
    old, into, *_ = data.classes
    folders, weights = ("once", "twice"), []

    def stop_in(step: str, folder: str) -> None:
        def die(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(f"ducats.run.loop.{step}", die)
            with pytest.raises(KeyboardInterrupt):
                run_quickly(*LONGER, method="ducats", data=data, folder=folder)

    for folder in folders:
        stop_in("save_hints", folder)  # of the first round
        merge_class(RunFolder(tmp_path / folder), old, into, "ada")
        if folder == "twice":
            stop_in("save_model", folder)
        run_folder = run_quickly(*LONGER, method="ducats", data=data, folder=folder)
        weights.append(run_folder.model_path.read_bytes())
    assert weights[0] == weights[1]
    truth = dict(zip(data.pool.keys, present(data.ground_truth)[:].tolist(), strict=True))
    for entry in load_ledger(run_folder).entries():
        assert entry.label == max(truth[entry.key], 1)
    assert any(truth[entry.key] == 0 for entry in load_ledger(run_folder).entries())
    assert load_ledger(run_folder).n_corrected == 0
    last = run_folder.stages()[-1]
    assert last["class_names"] == list(data.classes[1:])
    assert last["accuracy"] > 0.5
    shown = present(read_class_results(read_run(run_folder.path))).shown
    assert {row.name for row in shown} == set(data.classes[1:])


def test_invalid_changes_are_refused(run_quickly: Runner) -> None:
    run_folder = run_quickly(data=open_set())
    first, second, *_ = run_folder.classes.current
    for change, words in (
        (lambda: rename_class(run_folder, "nothing", "x"), "is not a class"),
        (lambda: rename_class(run_folder, first, second.upper()), "use --merge"),
        (lambda: rename_class(run_folder, first, "void"), "cannot be a class"),
        (lambda: merge_class(run_folder, first, first, ""), "into itself"),
        (lambda: add_class(run_folder, "x"), "no open round"),
    ):
        with pytest.raises(UserError, match=words):
            change()
    rename_class(run_folder, first, "one")
    rename_class(run_folder, "one", first)  # and back
    assert run_folder.classes.current[0] == first


def test_an_earlier_run_with_a_new_class_can_be_started_from(run_quickly: Runner, tmp_path: Path) -> None:
    data = open_set()
    earlier = run_quickly("acquisition.budget=30", data=data)
    later = run_quickly(
        f"acquisition={{start_from: {earlier.path}, budget: 40, after_epochs: [1, 2]}}",
        data=data,
        folder="later",
    )
    assert later.classes.names == earlier.classes.names
    assert later.classes.added[0][1] == 1


def test_a_class_that_was_renamed_in_an_earlier_run_keeps_its_labels(
    run_quickly: Runner, tmp_path: Path
) -> None:
    earlier = run_quickly("acquisition.budget=30")
    names = earlier.classes.names
    rename_class(earlier, names[0], "renamed")
    start = f"acquisition={{start_from: {earlier.path}, budget: 40, after_epochs: [1, 2]}}"
    later = run_quickly(start, folder="later")
    assert later.classes.names == names
    expected = [(entry.key, entry.label) for entry in load_ledger(earlier).entries()]
    assert [(e.key, e.label) for e in load_ledger(later).entries() if e.round == 1] == expected
