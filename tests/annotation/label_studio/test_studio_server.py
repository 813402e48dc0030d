"""End-to-end runs with a real Label Studio: query, push, annotate, pull, train."""

import itertools
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_studio import choice
from PIL import Image
from studio_rounds import CLASSES, area_store
from studio_server import LabelStudioProcess, find_program

import tiny_segmentation_data
from conftest import PLAIN_VIEWS
from ducats.annotation import AnnotationStore
from ducats.annotation.label_studio.api import LabelStudio
from ducats.annotation.label_studio.pull import pull_answers
from ducats.annotation.label_studio.push import push_questions
from ducats.annotation.label_studio.sync_state import SyncState
from ducats.cli import main
from ducats.data.toy import toy

pytestmark = pytest.mark.skipif(
    find_program() is None,
    reason="LABEL STUDIO IS NOT TESTED: .label-studio/bin/label-studio is missing; run `make label-studio`, "
    "or set DUCATS_LABEL_STUDIO",
)

SMALL_RUN_OPTIONS = (
    *("--set", "model.name=small_cnn", "--set", "model.params={width: 4, features: 16}"),
    *("--set", "data.params.size=8", "--set", "train.batch_size=8", "--set", "train.steps_per_epoch=4"),
    *("--set", "oracle={name: human, params: {rule: unanimous}}"),
    *(
        "--set",
        PLAIN_VIEWS,
    ),
    *("--epochs", "3", "--rounds", "2", "--budget", "6", "--device", "cpu"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabelStudioProcess]:
    program = find_program()
    assert program is not None
    process = LabelStudioProcess(program, tmp_path_factory.mktemp("label-studio"))
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(autouse=True)
def token(server: LabelStudioProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", server.tokens["anna"])


def run_command(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.05)


def test_an_image_run_end_to_end_with_a_server_outage(
    server: LabelStudioProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = toy(n_source_per_class=6, n_pool=20, n_test=12)
    assert data.ground_truth is not None
    names = [data.classes[label] for label in data.ground_truth[:].tolist()]
    for index, image in enumerate(data.pool.pixels[:]):
        path = tmp_path / "target" / f"{index:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    for index, (image, label) in enumerate(
        zip(data.source.images.pixels[:], data.source.labels[:].tolist(), strict=True)
    ):
        path = tmp_path / "source" / data.classes[label] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    run = tmp_path / "my run"
    folders = ("--source", tmp_path / "source", "--target", tmp_path / "target", "--out", run)
    command = ("run", *folders, *SMALL_RUN_OPTIONS)
    true_labels = {f"{index:03d}.png": name for index, name in enumerate(names)}

    assert run_command(*command) == 3
    assert run_command("push", run, "--url", server.url) == 0
    assert "round 1: 3 new tasks, 0 already there" in capsys.readouterr().out
    assert run_command("push", run, "--url", server.url) == 0
    assert "round 1: 0 new tasks, 3 already there" in capsys.readouterr().out
    state = SyncState.read(run / "questions")
    project = server.client("bob").get(f"/api/projects/{state.project}/")
    assert project["title"] == "ducats: my run"
    assert (project["task_number"], project["total_predictions_number"]) == (3, 3)
    assert project["maximum_annotations"] == 2
    assert project["model_version"] == "ducats-round-1"

    with (tmp_path / "watch.txt").open("w") as file:
        options = ("--watch", "--poll", "1", "--webhook", "127.0.0.1:0")
        watching = subprocess.Popen(
            [sys.executable, "-m", "ducats", "pull", run, *options],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        output = (tmp_path / "watch.txt").read_text
        wait_until(lambda: "round 1 waits for 3 of 3" in output())
        keys = list(state.tasks["1"])
        for key in keys:
            server.annotate("anna", state.tasks["1"][key], choice(true_labels[key]), 3.0)
        server.annotate("bob", state.tasks["1"][keys[0]], choice("none of these"), 5.0)
        wait_until(lambda: "1 disputed" in output())
        server.stop()
        wait_until(lambda: "does not respond" in output())
        server.start()
        wait_until(lambda: "Label Studio is back" in output())
        for key in keys[1:]:
            server.annotate("bob", state.tasks["1"][key], choice(true_labels[key]))
        wait_until(lambda: "round 1 waits for 1 of 3, 1 disputed" in output())
        for task in server.tasks("anna", state.project):
            for annotation in task["annotations"] if task["data"]["key"] == keys[0] else ():
                if annotation["lead_time"] == 3.0:  # anna changes her answer
                    body = {"result": choice("none of these"), "lead_time": 4.0}
                    server.client("anna").request("PATCH", f"/api/annotations/{annotation['id']}/", body)
        wait_until(lambda: "round 1 is complete" in output())
        assert output().count("does not respond") == 1
        capsys.readouterr()
        assert run_command(*command) == 3  # the next round
        assert watching.wait(30) == 0
    finally:
        watching.kill()
        watching.wait()
    assert server.client("anna").get("/api/webhooks/", project=state.project) == []
    closed = AnnotationStore(run / "questions").closed_round(1)
    assert closed is not None
    assert closed.words == {keys[0]: "void", keys[1]: true_labels[keys[1]], keys[2]: true_labels[keys[2]]}
    assert closed.seconds == {keys[0]: 9.0, keys[1]: 5.0, keys[2]: 5.0}

    assert run_command("push", run, "--url", server.url, "--blind") == 0
    second = SyncState.read(run / "questions")
    assert second.project == state.project
    for key, number in second.tasks["2"].items():
        for user in ("anna", "bob"):
            server.annotate(user, number, choice(true_labels[key]))
    assert run_command("pull", run) == 0
    assert "6 answers accepted; round 2 is complete" in capsys.readouterr().out
    assert run_command("pull", run) == 0
    assert "0 answers accepted" in capsys.readouterr().out
    assert run_command(*command) == 0
    capsys.readouterr()
    assert run_command("labels", run) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    for line in lines:
        _, key, label = line.split(",")
        assert label == ("void" if key == keys[0] else true_labels[key])
    annotators = {answer.annotator for answer in AnnotationStore(run / "questions").answers()}
    assert annotators == {"anna@example.org", "bob@example.org"}
    written = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert server.tokens["anna"].encode() not in written


def test_a_pixel_run_end_to_end(
    server: LabelStudioProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, run = tiny_segmentation_data.write_tree(tmp_path / "data"), tmp_path / "streets"
    for path in (root / "target" / "labels").iterdir():
        path.unlink()
    options = tiny_segmentation_data.folder_options(root, test=False)
    command = ("run", *options, "--budget", "4/image", "--out", run)
    expected: dict[str, str] = {}
    for number in (1, 2):
        assert run_command(*command) == 3, capsys.readouterr().err
        assert run_command("push", run, "--url", server.url) == 0
        store = AnnotationStore(run / "questions")
        questions = store.question_round(number).by_id
        state = SyncState.read(store.folder)
        assert len(state.tasks[str(number)]) == 4
        for task in server.tasks("bob", state.project):
            if task["data"]["round"] != number:
                continue
            result = task["predictions"][0]["result"]
            assert [region["value"]["keypointlabels"] for region in result] == [
                [questions[question].guess] for question in task["data"]["questions"]
            ]
            for index, (question, region) in enumerate(zip(task["data"]["questions"], result, strict=True)):
                expected[question] = ("road", "car", "sky")[(index + number) % 3]
                region["value"]["keypointlabels"] = [expected[question]]
            server.annotate("bob", task["id"], result, 8.0)
        assert run_command("pull", run) == 0
        assert "8 answers accepted" in capsys.readouterr().out
    assert run_command(*command) == 0
    capsys.readouterr()
    assert run_command("labels", run) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    labels = {f"{key}#{y},{x}": label for _, key, y, x, label in (line.split(",") for line in lines)}
    assert labels == expected
    assert len(labels) == 16


def test_areas_with_images_served_from_local_files(server: LabelStudioProcess, tmp_path: Path) -> None:
    folder = server.media / "lab" / "run" / "questions"
    squares = [
        [list(itertools.product(range(y, y + 3), range(x, x + 3))) for y, x in corners]
        for corners in (((0, 0), (10, 20), (37, 57)), ((5, 5),))
    ]
    store = area_store(folder, squares, "region")
    studio = LabelStudio(server.client("anna"))
    for _ in range(2):
        done = push_questions(
            store, studio, "ducats: areas", images="local-files", document_root=server.media
        )
    assert (done.new_tasks, done.existing_tasks) == (0, 2)
    project = SyncState.read(folder).project
    first, second = server.tasks("bob", project)
    assert first["data"]["image"] == "/data/local-files/?d=lab/run/media/pool/street-0.png"
    # Members of the project can load the original file.
    access = server.client("bob").request("POST", "/api/token/refresh/", {"refresh": server.tokens["bob"]})
    request = urllib.request.Request(
        server.url + first["data"]["image"], headers={"Authorization": f"Bearer {access['access']}"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.read() == (folder.parent / "media" / "pool" / "street-0.png").read_bytes()
    server.annotate("bob", first["id"], first["predictions"][0]["result"][:2], 4.0)
    server.annotate("bob", second["id"], [], was_cancelled=True)
    pulled = pull_answers(store, studio)
    one, two, three, four = store.question_round(1).questions
    found = {answer.question: answer.word for answer in pulled.received}
    assert found == {one.id: one.guess, two.id: two.guess, four.id: "skip"}
    assert store.status(three.id).state == "open"
    region = first["predictions"][0]["result"][2]
    region["value"]["brushlabels"] = [CLASSES[2]]
    server.annotate("bob", first["id"], [*first["predictions"][0]["result"][:2], region], 1.0)
    assert [answer.word for answer in pull_answers(store, studio).received] == [CLASSES[2]]
    assert np.isclose(sum(status.seconds for status in store.statuses(1).values()), 4.0 + 1.0 + 2.0)
