"""State and answers of the page's server."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from page_client import client, fetch_image, next_ids, open_page, post, state
from page_rounds import image_questions
from PIL import Image
from starlette.testclient import TestClient

from ducats.annotation import AnswerLog
from ducats.annotation.oracles import HumanOracle
from ducats.annotation.page import payloads
from ducats.annotation.page.round_progress import RoundProgress
from ducats.data.domain import Images
from ducats.ledger import Request
from ducats.utils.errors import AwaitingLabels


def test_before_the_first_round_between_rounds_and_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "questions").mkdir()
    page = client(tmp_path)
    assert state(page)["state"] == "empty"
    store = image_questions(tmp_path, 1)
    assert state(page)["state"] == "asking"
    assert post(page, ("r1/1", "red"))["state"] == "complete"
    assert store.close_round(1) is not None
    assert state(page)["state"] == "closed"
    image_questions(tmp_path, 2, number=2)
    assert next_ids(state(page)) == ["r2/1", "r2/2"]
    (tmp_path / "questions" / "round-02" / "closed.json").write_text(
        '{"words": {}, "kinds": {}, "seconds": {}, "reason": "time_limit"}'
    )
    (tmp_path / "model.safetensors").touch()
    assert state(page)["state"] == "finished"


def test_a_round_answered_by_label_pngs_has_its_own_state(tmp_path: Path) -> None:
    pool = Images(("a", "b"), torch.zeros(2, 3, 4, 6, dtype=torch.uint8))
    sizes = torch.tensor([[4, 6]] * 2)
    oracle = HumanOracle(tmp_path / "questions", pool, ["red", "blue"], sizes, unit="image")
    page = client(tmp_path)
    with pytest.raises(AwaitingLabels):
        oracle(Request(1, torch.zeros(24, dtype=torch.long), torch.arange(24), torch.tensor([24])))
    assert state(page)["state"] == "maps"
    assert state(page)["next"] == []


def test_a_restarted_run_resets_the_page(tmp_path: Path) -> None:
    _, page = open_page(tmp_path, 2)
    before = post(page, ("r1/1", "red"), ("r1/2", "red"))
    assert before["state"] == "complete"
    assert page.get("/image/whole/1/1").status_code == 200
    shutil.rmtree(tmp_path / "questions")
    assert state(page)["state"] == "empty"
    store = image_questions(tmp_path, 3)
    Image.new("RGB", (7, 7)).save(store.question_round(1).questions[0].original_path)
    body = post(page, ("r1/1", "green"))
    assert body["stamp"] != before["stamp"]
    assert next_ids(body) == ["r1/2", "r1/3"]
    assert body["counts"] == {"all": 3, "settled": 1, "disputed": 0, "mine": 1, "seconds": 1.5}
    assert fetch_image(page, "/image/whole/1/1").size == (7, 7)


def test_a_question_has_the_models_guess_and_a_reason_unless_blind(tmp_path: Path) -> None:
    image_questions(tmp_path)
    question = state(client(tmp_path))["next"][0]
    assert (question["guess"], question["probability"]) == ("red", 0.62)
    for threshold, acceptable in ((0.0, True), (0.62, True), (0.63, False)):
        page = client(tmp_path, accept_threshold=threshold)
        assert state(page)["next"][0]["acceptable"] == acceptable
    assert "few images like this one, and it is not sure of its guess (red)" in question["why"]
    blind = client(tmp_path, blind=True)
    text = blind.get("/api/state?annotator=ada").text + blind.get("/api/grid?annotator=ada").text
    assert not any(word in text for word in ('guess":"red', "0.62", "acceptable", "not sure"))
    assert blind.get("/api/grid?annotator=ada").json()["questions"] == []


def test_new_questions_come_first_then_skipped_then_unsure(tmp_path: Path) -> None:
    _, page = open_page(tmp_path, 4)
    post(page, ("r1/1", "unsure"))
    body = post(page, ("r1/2", "skip"))
    assert next_ids(body) == ["r1/3", "r1/4", "r1/2", "r1/1"]
    body = post(page, ("r1/3", "blue"))
    assert next_ids(body) == ["r1/4", "r1/2", "r1/1"]
    body = post(page, ("r1/4", "skip"))
    assert next_ids(body) == ["r1/2", "r1/4", "r1/1"]
    assert body["counts"] == {"all": 4, "settled": 1, "disputed": 0, "mine": 2, "seconds": 6.0}


def test_two_annotators_get_different_questions_while_there_are_enough(tmp_path: Path) -> None:
    _, page = open_page(tmp_path, 14)
    first, second = next_ids(state(page, "ada")), next_ids(state(page, "bob"))
    assert len(first) == len(second) == 6
    assert not set(first) & set(second)
    assert next_ids(state(page, "eve")) == ["r1/13", "r1/14", *first[:4]]  # held by others: last
    assert next_ids(state(page, "ada")) == first


def test_a_question_is_held_for_two_minutes(tmp_path: Path) -> None:
    store, times = image_questions(tmp_path, 3), iter([0.0, 119.0, 120.0])
    progress = RoundProgress(store, store.question_round(1), lambda: next(times))
    shown = [progress.next_questions(annotator, 1)[0].number for annotator in ("ada", "bob", "eve")]
    assert shown == [1, 2, 1]


def test_a_dispute_is_shown_to_those_concerned_until_they_agree(tmp_path: Path) -> None:
    _, page = open_page(tmp_path, 1, rule="unanimous", min_annotators=2)
    assert next_ids(post(page, ("r1/1", "red"), annotator="ada")) == []  # not asked twice of one annotator
    assert next_ids(state(page, "bob")) == ["r1/1"]
    body = post(page, ("r1/1", "blue"), annotator="bob")
    assert body["counts"]["disputed"] == 1
    assert next_ids(body) == []  # bob answered last: it is ada's turn
    (question,) = state(page, "ada")["next"]
    assert question["votes"] == [{"annotator": "ada", "word": "red"}, {"annotator": "bob", "word": "blue"}]
    assert question["mine"] == "red"
    assert next_ids(state(page, "eve")) == ["r1/1"]
    assert post(page, ("r1/1", "blue"), annotator="ada")["state"] == "complete"


def test_an_undone_answer_opens_its_question_again(tmp_path: Path) -> None:
    store, page = open_page(tmp_path, 2, max_seconds=10.0)
    assert next_ids(post(page, ("r1/1", "green"), seconds=4)) == ["r1/2"]
    assert next_ids(post(page, ("r1/1", ""), seconds=0)) == ["r1/1", "r1/2"]
    assert post(page, ("r1/1", "red"), seconds=2)["state"] == "asking"
    assert store.status("r1/1").word == "red"
    assert post(page, ("r1/2", "skip"), seconds=4)["state"] == "complete"  # its time is spent


def test_answers_given_at_once_are_undone_at_once_after_a_reload(tmp_path: Path) -> None:
    _, page = open_page(tmp_path, 4)
    for act, numbers in (("x", [1]), ("y", [2, 3])):
        answers = [{"question": f"r1/{n}", "word": "red", "external_id": f"{act}.{n}"} for n in numbers]
        page.post("/api/answers", json={"annotator": "ada", "answers": answers})
    again = client(tmp_path)  # as another process that reads the same log
    recent = again.get("/api/recent?annotator=ada").json()["recent"]
    assert [[one["number"] for one in group] for group in recent] == [[1], [2, 3]]
    assert again.get("/api/recent?annotator=bob").json()["recent"] == []
    assert next_ids(state(again)) == ["r1/4"]
    assert again.get("/api/question/1/2?annotator=ada").json()["mine"] == "red"


def send(page: TestClient, *answers: Any) -> Any:
    return page.post("/api/answers", json={"annotator": "ada", "answers": answers})


def test_invalid_answers_are_recorded_and_a_repeated_request_gets_the_same_reply(tmp_path: Path) -> None:
    store, page = open_page(tmp_path, 2)
    unknown = {"question": "x", "word": "red", "external_id": "f.0"}
    malformed = {"question": "r1/1", "word": 3, "external_id": "m.0"}
    reply = send(page, "red", malformed, unknown).json()
    assert reply["rejected"] == {"m.0": "malformed", "f.0": "unknown question"}
    for _ in range(2):
        reply = send(page, {"question": "r1/1", "word": "cow", "external_id": "z.0"}).json()
        assert reply["rejected"] == {"z.0": "unknown class"}
    reasons = [answer.reject_reason for answer in store.answers()]
    assert reasons == ["malformed", "malformed", "unknown question", "unknown class"]


def test_an_answer_lost_to_a_full_disk_is_not_reported_as_saved_and_can_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, page = open_page(tmp_path, 2)
    answer = {"question": "r1/1", "word": "red", "external_id": "z.0"}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(AnswerLog, "append", full)
        reply = send(page, answer)
    assert (reply.status_code, "No space left" in reply.text, store.answers()) == (500, True, [])
    assert send(page, answer).json()["rejected"] == {}
    assert store.status("r1/1").word == "red"


def test_lone_surrogates_do_not_break_the_server(tmp_path: Path) -> None:
    store = image_questions(tmp_path, 1)
    answer = {"question": "r1/1\ud83d", "word": "red", "external_id": "\ud83d.0"}
    body = json.dumps({"annotator": "ada \ud83d", "answers": [answer]})  # as a browser writes them
    reply = client(tmp_path).post("/api/answers", content=body, headers={"Content-Type": "application/json"})
    assert reply.json()["rejected"] == {"?.0": "unknown question"}
    assert [(one.annotator, one.question) for one in store.answers()] == [("ada ?", "r1/1?")]


def test_a_fixed_name_overrides_the_browsers(tmp_path: Path) -> None:
    store = image_questions(tmp_path)
    page = client(tmp_path, annotator=" Ada L. ")
    assert state(page, "")["annotator"] == "Ada L."
    post(page, ("r1/1", "red"), annotator="mallory")
    assert [answer.annotator for answer in store.answers()] == ["Ada L."]


def test_the_grid_lists_open_questions_with_one_guess(tmp_path: Path) -> None:
    _, page = open_page(tmp_path, 6)  # guesses: red green red red green red
    body = page.get("/api/grid?annotator=ada&guess=green").json()
    assert body["guesses"] == [["red", 4], ["green", 2]]
    assert [one["number"] for one in body["questions"]] == [2, 5]
    post(page, ("r1/2", "green"))
    body = page.get("/api/grid?annotator=ada&guess=unicorn").json()
    assert body["guess"] == "red"
    assert body["guesses"] == [["red", 4], ["green", 1]]


def test_class_keys_do_not_collide_with_commands_and_follow_names_like_keys() -> None:
    names = [f"class {n}" for n in range(28)]
    letters = payloads.assign_keys(names[:27])
    assert len(set(letters) - {None, *"0ugasnorx"}) == 27
    assert payloads.assign_keys(names) == [None] * 28
    for named, keys in (
        ([*"0123456789"], [*"0123456789"]),
        (["A", "a", "B"], ["1", "2", "b"]),
        (["B", "b"], ["1", "2"]),
        (["1", "two", "3"], ["1", "2", "3"]),
    ):
        assert payloads.assign_keys(named) == keys
