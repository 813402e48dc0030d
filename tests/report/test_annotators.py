"""Annotators in the report: statistics by hand, escaping, unreadable images."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from minimal_runs import stage_record, write_run_folder
from PIL import Image

from ducats.annotation import AnnotationStore, Question, QuestionArea, QuestionRound, RoundRules
from ducats.annotation.amend import LabelAmender, NewLabel
from ducats.ledger import Ledger, Request
from ducats.report import find_runs, report
from ducats.report.annotators import annotation_stats, describe_shared_answers
from ducats.runfolder.pool_file import PoolInfo
from ducats.runfolder.question_names import MASKS
from ducats.runfolder.run_folder import RunFolder

CLASSES = ("cat", "dog")


def write_questions(folder: Path, questions: list[Question], **rules: Any) -> AnnotationStore:
    """Write an unfinished run with questions for annotators."""
    write_run_folder(folder, {"method": "duc", "seed": 0}, [], n_epochs=1, finished=False)
    store = AnnotationStore(folder / "questions")
    for question in questions:
        path = store.round_folder(1) / question.image_path
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (256, 128), (200, 60 * question.number % 256, 40)).save(path)
    QuestionRound.write(store.round_folder(1), RoundRules(1, CLASSES, **rules), questions)
    return store


def images(count: int) -> list[Question]:
    keys = [f"img/{i}.png" for i in range(count)]
    return [Question(n, key, key, f"thumbnails/{n:04d}.png") for n, key in enumerate(keys, start=1)]


def submit_answer(
    store: AnnotationStore, image: int, annotator: str, word: str, seconds: float | None = None
) -> str | None:
    answer = {"question": f"img/{image}.png", "word": word, "annotator": annotator, "seconds": seconds}
    return store.receive([answer], channel="test")[0].reject_reason


def annotated_run(folder: Path) -> AnnotationStore:
    store = write_questions(folder, images(5), rule="majority", min_annotators=2, allow_new_classes=True)
    for image in range(5):
        submit_answer(store, image, "anna", "void" if image == 3 else "cat", 2.0 + image)  # 2, 3, 4, 5, 6
    for image, word in enumerate(["cat", "dog", "cat", "void"]):
        submit_answer(store, image, "bob", word, 30.0)
    submit_answer(store, 1, "eve", "dog")
    submit_answer(store, 4, "bob", "unsure")
    submit_answer(store, 4, "eve", "horse")
    submit_answer(store, 4, "bob", "horse", 30.0)
    assert store.close_round(1) is not None
    submit_answer(store, 0, "eve", "dog")  # late
    return store


def test_statistics_by_hand(tmp_path: Path) -> None:
    annotated_run(tmp_path / "run")
    (found,) = annotation_stats(find_runs([tmp_path / "run"]))
    anna, bob, eve = found.annotators
    assert (anna.annotator, anna.answers, anna.void) == ("anna", 5, 1)
    assert (anna.median_seconds, anna.seconds) == (4.0, 20.0)
    assert (anna.compared, anna.agreed) == (5, 3)  # outvoted in 1 and 4
    assert (bob.answers, bob.median_seconds, bob.compared, bob.agreed) == (5, 30.0, 5, 5)
    assert (eve.answers, eve.median_seconds, eve.compared, eve.agreed) == (2, None, 2, 2)
    assert (found.n_multi_annotated, found.unanimous_share, found.n_late) == (5, "60%", 1)
    assert found.disputes.table.rows == (
        ("img/1.png", 1, "anna: cat, bob: dog, eve: dog", "dog"),
        ("img/4.png", 1, "anna: cat, bob: horse, eve: horse", "horse"),
    )
    assert [(row[0], row[3]) for row in found.voids.table.rows] == [("img/3.png", "void")]
    assert found.annotator_table.rows[0] == ("anna", 5, 1, 0, 5, "4.0", "0.3", "3 of 5", "41 % (12 to 78 %)")


def test_the_page_shows_statistics_and_images(tmp_path: Path) -> None:
    annotated_run(tmp_path / "run")
    page = report([tmp_path / "run"], tmp_path / "out").page.read_text(encoding="utf-8")
    text = " ".join(page.split())
    for words in (
        "3 annotators, 2.8 minutes in total (10 of 12 answers timed) – test: 12 answers.",
        "5 questions had several answers; in 60% of them all answers agreed.",
        "Agreement on 5 questions answered independently: 56 %, Conger&#39;s kappa of 3 annotators 0.35",
        "the expected share of wrong answers to these with its 95 % interval, by the model of Dawid",
        "1 label is void: no class applies.",
        "1 answer arrived after the end of the round and was ignored.",
        "anna: cat, bob: dog, eve: dog",
    ):
        assert words in text
    assert page.count('<img src="data:image/png;base64,') == 3


def test_a_run_without_answers_has_no_annotator_section(tmp_path: Path) -> None:
    write_questions(tmp_path / "run", images(2))
    assert annotation_stats(find_runs([tmp_path / "run"])) == []
    page = report([tmp_path / "run"], tmp_path / "out").page.read_text(encoding="utf-8")
    assert "<h2>Annotators</h2>" not in page


def test_names_are_escaped_and_unreadable_images_left_out(tmp_path: Path) -> None:
    store = write_questions(
        tmp_path / "run", images(2), rule="unanimous", min_annotators=2, allow_new_classes=True
    )
    submit_answer(store, 0, "<script>alert(1)</script>", "<img src=x onerror=alert(2)>")
    submit_answer(store, 0, "bob", "cat")
    (store.round_folder(1) / "thumbnails" / "0001.png").write_bytes(b"gone")
    page = report([tmp_path / "run"], tmp_path / "out").page.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;: &lt;img src=x" in page
    assert "none yet" in page


def test_a_pixel_question_shows_a_crop(tmp_path: Path) -> None:
    area = QuestionArea(0, 255, 128, 256, ((255, 1),))
    store = write_questions(
        tmp_path / "run",
        [Question(1, "im#0,255", "im", "overlays/im.png", area=area)],
        unit="pixel",
    )
    store.receive([{"question": "im#0,255", "word": "void", "annotator": "anna"}], channel="test")
    (found,) = annotation_stats(find_runs([tmp_path / "run"]))
    assert found.voids.table.rows == (("im#0,255", 1, "anna: void", "void"),)
    assert found.voids.thumbnails[0].startswith("data:image/png;base64,")


def test_pixels_answered_by_label_pngs_are_counted_without_an_annotator(tmp_path: Path) -> None:
    write_run_folder(tmp_path / "run", {"method": "duc", "seed": 0}, [], n_epochs=1, finished=False)
    run_folder = RunFolder(tmp_path / "run")
    (run_folder.questions_path / "round-01" / MASKS).mkdir(parents=True)
    assert annotation_stats(find_runs([run_folder.path])) == []
    request = Request(1, torch.zeros(3, dtype=torch.long), torch.tensor([0, 1, 5]))
    Ledger(run_folder.labels_path, ["im"], [[2, 3]]).append(request, torch.zeros(3, dtype=torch.long))
    (found,) = annotation_stats(find_runs([run_folder.path]))
    assert (found.annotators, found.total) == ((), "label PNGs: 3 pixels")
    page = report([run_folder.path], tmp_path / "out").page.read_text(encoding="utf-8")
    assert "<p>label PNGs: 3 pixels." in page


def test_suspicious_answers_and_corrections_are_shown(tmp_path: Path) -> None:
    sure = [replace(each, guess="dog", probability=0.95) for each in images(3)]
    store, run_folder = write_questions(tmp_path / "run", sure), RunFolder(tmp_path / "run")
    for image in range(3):
        submit_answer(store, image, "anna", "cat")
    assert store.close_round(1) is not None
    run_folder.save_pool(PoolInfo([each.key for each in sure]))
    request = Request(1, torch.arange(3), torch.zeros(3, dtype=torch.long))
    Ledger(run_folder.labels_path, [each.key for each in sure]).append(request, torch.zeros(3).long())
    LabelAmender(run_folder, "eve").amend([NewLabel("img/1.png", "dog")])
    (found,) = annotation_stats(find_runs([tmp_path / "run"]))
    assert [row[:4] for row in found.suspicious.table.rows] == [
        ("img/0.png", 1, "cat", "dog (95 %)"),
        ("img/2.png", 1, "cat", "dog (95 %)"),
    ]
    assert [row[:5] for row in found.corrections.rows] == [("img/1.png", 1, "cat", "dog", "eve")]
    page = report([tmp_path / "run"], tmp_path / "out").page.read_text(encoding="utf-8")
    assert (
        "1 label corrected; 1 correction came after the last round, so the model was not trained on it."
    ) in " ".join(page.split())


def test_answers_that_runs_share_are_counted_once(tmp_path: Path) -> None:
    for name, digests in (("a", "xy"), ("b", "yz")):
        pairs = zip(images(2), digests, strict=True)
        store = write_questions(tmp_path / name, [replace(each, image_digest=one) for each, one in pairs])
        for image in range(2):
            submit_answer(store, image, "anna", "cat", 2.0)
    report([tmp_path], tmp_path)
    assert "asked 4 questions, 3 of them different" in (tmp_path / "report.html").read_text()
    stats = annotation_stats(find_runs([tmp_path / "a"]))
    assert describe_shared_answers(stats) == ""


def test_the_time_of_shared_answers_is_not_counted_twice(tmp_path: Path) -> None:
    for name, digest in (("a", "x"), ("b", "x"), ("c", "y")):
        (question,) = images(1)
        store = write_questions(tmp_path / name, [replace(question, image_digest=digest)])
        submit_answer(store, 0, "anna", "cat", 120.0)
        record = {**stage_record(1, 1, 0.5), "annotation_seconds": 120.0}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    for other, shown in (
        ("b", "<b>2.0 min</b> per run, on average; runs share answers"),
        ("c", "<b>4.0 min</b> in 2 runs"),
    ):
        report([tmp_path / "a", tmp_path / other], tmp_path / "out")
        page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
        tile = page[page.index('<span class="soft">People') :]
        assert shown in re.sub(r"</?span[^>]*>|\s+", " ", tile[: tile.index("</div>")]).replace("  ", " ")
