"""Classes that appear during a segmentation run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from conftest import Runner, make_runner, quick_pixels
from ducats.annotation import AnnotationStore
from ducats.annotation.change_classes import merge_class
from ducats.data.domain import UNLABELLED, AdaptationData, Domain
from ducats.data.streets import streets
from ducats.deploy import load_trained_model
from ducats.ledger import load_ledger
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import AwaitingLabels
from present import present
from question_rounds import submit_answer

N_KNOWN = 4  # classes of the source
NEW = "thing"  # all others


def open_set() -> AdaptationData:
    """Street scenes whose source lacks a class."""
    data = streets(n_source=6, n_pool=5, n_test=3, height=16, width=32)
    known, source, test = tuple(data.classes[:N_KNOWN]), data.source, present(data.test)
    source_maps = source.labels[:].clone()
    source_maps[source_maps >= N_KNOWN] = UNLABELLED
    return replace(
        data,
        source=Domain(source.images, source_maps, known),
        ground_truth=_at_most_new(present(data.ground_truth)[:]),
        test=replace(test, labels=_at_most_new(test.labels[:]), classes=(*known, NEW)),
        target_only_classes=(NEW,),
    )


def _at_most_new(labels: Tensor) -> Tensor:
    return labels.clamp(max=N_KNOWN)


@pytest.fixture
def run_pixels(tmp_path: Path) -> Runner:
    return make_runner(tmp_path, quick_pixels)


@pytest.mark.parametrize(
    "objective", ["duc", "mada", "mme", "proda", "ripu", "seg_uncertainty", "tpld", "waal"]
)
def test_objectives_continue_with_a_new_class(run_pixels: Runner, objective: str) -> None:
    settings = (f"objective={{name: {objective}, params: {{}}}}", "train.ema_decay=0.9")
    run_folder = run_pixels(*settings, method="random", data=open_set())
    assert run_folder.classes.added == ((NEW, 1),)
    *_, record = run_folder.read_records("added_classes")
    assert set(record["predicted"]) == {str(N_KNOWN)}
    first, *_, last = run_folder.stages()
    assert first["class_names"][N_KNOWN] == run_folder.classes.names[N_KNOWN] == NEW
    assert len(first["class_iou"]) == len(last["class_iou"]) == N_KNOWN + 1
    trained = load_trained_model(run_folder.path)
    assert (trained.classes[N_KNOWN], len(trained.classes)) == (NEW, N_KNOWN + 1)


def test_people_add_classes_by_word_and_in_label_pngs(run_pixels: Runner, tmp_path: Path) -> None:
    data = replace(open_set(), ground_truth=None, target_only_classes=(), test=None)
    names = data.classes
    settings = ("oracle.name=human", "acquisition.budget=2/image")
    with pytest.raises(AwaitingLabels):
        run_pixels(*settings, data=data)
    run_folder, store = RunFolder(tmp_path / "run"), AnnotationStore(tmp_path / "run" / "questions")
    *by_png, by_word = present(store.open_round()).questions
    submit_answer(store, by_word.id, "pole", "anna")
    folder = store.round_folder(1)
    class_list = folder / "classes.txt"
    class_list.write_text(class_list.read_text() + f"{N_KNOWN} kerb\n")
    for mask in sorted((folder / "masks").rglob("*.png")):
        path = folder / "answers" / mask.relative_to(folder / "masks")
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.full(np.asarray(Image.open(mask)).shape, N_KNOWN, np.uint8)
        if by_word.key in str(mask):
            values[present(by_word.area).y, present(by_word.area).x] = 254  # not answered here
        Image.fromarray(values).save(path)
    with pytest.raises(AwaitingLabels):
        run_pixels(*settings, data=data)
    assert run_folder.classes.names == (*names, "kerb", "pole")
    labels = [entry.label for entry in load_ledger(run_folder).entries()]
    assert sorted(labels) == [N_KNOWN] * len(by_png) + [N_KNOWN + 1]
    assert "5 pole" in (store.round_folder(2) / "classes.txt").read_text()

    merge_class(run_folder, names[1], names[0], "")  # also in the label maps of the source
    for question in present(store.open_round()).questions:
        submit_answer(store, question.id, names[1], "anna")  # the former name still counts
    run_folder = run_pixels(*settings, data=data)
    assert {entry.label for entry in load_ledger(run_folder).entries() if entry.round == 2} == {0}
    assert load_trained_model(run_folder.path).classes == (names[0], *names[2:], "kerb", "pole")
