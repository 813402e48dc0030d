"""Unreadable files are skipped, counted and listed by every command; ``--strict`` refuses them."""

import json
import os
from pathlib import Path

import pytest

import tiny_segmentation_data
from commands import Capture, ducats, error_of, output_of, read_csv, set_options, write_images
from conftest import PLAIN_VIEWS
from ducats.data.toy import toy
from ducats.deploy import load_trained_model
from ducats.runfolder.run_folder import RunFolder

SMALL = (
    *set_options("model.name=small_cnn", "model.params={width: 4, features: 16}", "data.params.size=8"),
    *set_options("train={batch_size: 8, steps_per_epoch: 2}", PLAIN_VIEWS),
    *("--epochs", "2", "--rounds", "1", "--budget", "3", "--ground-truth", "--device", "cpu"),
)
DAMAGED = ("source/a/bad.png", "target/b/bad.png", "test/a/bad.png")


def damage(path: Path) -> None:
    """Cut a copy of an image in half: its header is intact."""
    whole = next(file for file in sorted(path.parent.iterdir()) if file != path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source, target and test folders, each with a damaged image."""
    root, data = tmp_path_factory.mktemp("own"), toy(n_source_per_class=4, n_pool=12, n_test=8)
    sets = {"source": data.source.images, "target": data.pool, "test": toy(n_pool=8).pool}
    for name, images in sets.items():
        write_images(root / name, images.pixels[:8], ["a", "b"] * 4, size=(16, 16))
    for name in DAMAGED:
        damage(root / name)
    return root


def run_options(root: Path, *options: object) -> tuple[object, ...]:
    folders = (part for name in ("source", "target", "test") for part in (f"--{name}", root / name))
    return ("run", *folders, *SMALL, *options)


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert ducats(*run_options(root, "--method", "duc", "--out", out)) == 0
    return out


def test_run_skips_counts_and_lists(root: Path, run: Path, capsys: Capture) -> None:
    rows = read_csv(run / "unreadable.csv")
    assert [(row["set"], row["path"]) for row in rows] == [
        (name.split("/")[0], str(root / name)) for name in sorted(DAMAGED)
    ]
    assert all("truncated" in row["reason"] for row in rows)
    summary = RunFolder(run).data_summary
    assert [summary[name]["images"] for name in ("source", "pool", "test")] == [8, 8, 8]
    printed = output_of(capsys, *run_options(root, "--out", run))  # the finished run
    assert printed.splitlines()[-2].endswith(f"3 unreadable files skipped, see {run / 'unreadable.csv'}")


def test_a_strict_run_refuses(root: Path, tmp_path: Path, capsys: Capture) -> None:
    message = error_of(capsys, *run_options(root, "--strict", "--out", tmp_path / "run"))
    assert "1 of 9 images cannot be read" in message
    assert "source/a/bad.png" in message
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_needs_the_same_images(root: Path, run: Path, capsys: Capture) -> None:
    path = root / "target/b/bad.png"
    truncated = path.read_bytes()
    (path.parent / "bad.png").write_bytes((path.parent / "001.png").read_bytes())  # repaired
    try:
        message = error_of(capsys, *run_options(root, "--out", run))
    finally:
        path.write_bytes(truncated)
    assert "was created with other data (pool.images: 8 -> 9" in message


def test_a_source_class_without_readable_images(root: Path, tmp_path: Path, capsys: Capture) -> None:
    write_images(tmp_path / "source", toy().pool.pixels[:3], ["a", "b", "c"])
    (tmp_path / "source/c/002.png").write_bytes(b"")
    options = ("run", "--source", tmp_path / "source", "--target", root / "target", *SMALL)
    assert "no source image of 'c' can be read" in error_of(capsys, *options, "--out", tmp_path / "run")


def test_predict(root: Path, run: Path, tmp_path: Path, capsys: Capture) -> None:
    out, listed = tmp_path / "p.csv", tmp_path / "p-unreadable.csv"
    command = ("predict", run, root / "target", "--out", out, "--device", "cpu")
    last = output_of(capsys, *command).splitlines()[-1]
    assert last == f"8 images, predictions in {out}; 1 unreadable image skipped, see {listed}"
    assert len(read_csv(out)) == 8
    assert [row["path"] for row in read_csv(listed)] == [str(root / "target/b/bad.png")]
    out.unlink()
    assert "1 of 9 images cannot be read" in error_of(capsys, *command, "--strict")
    assert not out.exists()
    assert ducats("predict", run, root / "target/a", "--out", out, "--device", "cpu") == 0
    assert not listed.exists()  # it listed the images of an earlier call


def test_evaluate_and_triage(root: Path, run: Path, capsys: Capture) -> None:
    for data in ((), ("--data", root / "test")):
        result = json.loads(output_of(capsys, "evaluate", run, *data, "--device", "cpu"))
        assert result["images"] == 8
        assert list(result["unreadable"]) == [str(root / "test/a/bad.png")]
    strict = ("--data", root / "test", "--device", "cpu", "--strict")
    assert "1 of 9 images" in error_of(capsys, "evaluate", run, *strict)
    triage = ("triage", run, "--risk", "0.9", "--confidence", "0.5", "--data", root / "test")
    assert "1 of 9 images cannot be read" in output_of(capsys, *triage, "--device", "cpu")
    assert "1 of 9 images" in error_of(capsys, *triage, "--device", "cpu", "--strict")
    load_trained_model(run).run_folder.triage_path.unlink()


def test_score(root: Path, run: Path, tmp_path: Path, capsys: Capture) -> None:
    command = ("score", run, root / "target", "--budget", 2, "--out", tmp_path / "s", "--device", "cpu")
    message = error_of(capsys, *command, "--strict")
    assert "1 of 9 images cannot be read, listed in" in message
    assert not (tmp_path / "s/picks.csv").exists()
    assert "unreadable images: 1" in output_of(capsys, *command)
    assert [row["key"] for row in read_csv(tmp_path / "s/unreadable.csv")] == ["b/bad.png"]


# ---- segmentation: an image goes with its label file


def test_segmentation_run_and_predict(tmp_path: Path, capsys: Capture) -> None:
    root, out = tiny_segmentation_data.write_tree(tmp_path / "data"), tmp_path / "run"
    damaged = [root / "source/labels/001.png", root / "target/images/102.png", root / "test/labels/203.png"]
    os.truncate(damaged[0], damaged[0].stat().st_size // 2)
    os.truncate(damaged[1], damaged[1].stat().st_size // 2)
    damaged[2].write_bytes(b"")
    options = ("--ground-truth", "--budget", "30/image", "--out", out)
    command = ("run", *tiny_segmentation_data.folder_options(root, test=True), *options)
    assert "3 unreadable files skipped" in output_of(capsys, *command)
    assert [row["path"] for row in read_csv(out / "unreadable.csv")] == list(map(str, damaged))
    summary = RunFolder(out).data_summary
    assert [summary[name]["images"] for name in ("source", "pool", "test")] == [3, 3, 3]
    predict = ("predict", out, root / "target/images", "--out", tmp_path / "maps", "--device", "cpu")
    assert "3 images" in output_of(capsys, *predict)
    assert [row["path"] for row in read_csv(tmp_path / "maps/unreadable.csv")] == [str(damaged[1])]
    evaluated = json.loads(output_of(capsys, "evaluate", out, "--data", root / "test", "--device", "cpu"))
    assert list(evaluated["unreadable"]) == [str(damaged[2])]
    assert "1 of 4 images" in error_of(capsys, *predict, "--strict")
    assert "images cannot be read" in error_of(capsys, *command[:-1], tmp_path / "other", "--strict")


# ---- `ducats doctor FOLDER`


def test_doctor_checks_any_folder(tmp_path: Path, capsys: Capture) -> None:
    write_images(tmp_path / "own", toy().pool.pixels[:5], ["a", "a", "b", "b", "b"], size=(16, 12))
    (tmp_path / "own/b/copy.png").write_bytes((tmp_path / "own/b/003.png").read_bytes())
    printed = output_of(capsys, "doctor", tmp_path / "own")
    assert "folder: 6 images in 2 classes, from 2 ('a') to 4 ('b')" in printed
    assert "all 12 x 16" in printed
    assert "6 RGB" in printed
    assert "1 image of the folder is a copy of another image in it" in printed
    damage(tmp_path / "own/b/bad.png")
    printed = output_of(capsys, "doctor", tmp_path / "own")
    assert "warning: 1 of 7 images cannot be read" in printed
    assert ducats("doctor", tmp_path / "own", "--strict") == 1
    assert "without settings" in error_of(capsys, "doctor", tmp_path / "own", "--seed", "1")
    assert ducats("doctor", tmp_path / "nowhere") == 1
    assert "does not exist" in capsys.readouterr().out


def test_doctor_checks_a_folder_with_label_files(tmp_path: Path, capsys: Capture) -> None:
    root = tiny_segmentation_data.write_tree(tmp_path)
    assert "every image has a label file" in output_of(capsys, "doctor", root / "source")
    (root / "source/labels/001.png").unlink()
    assert ducats("doctor", root / "source") == 1
    assert "1 of 4 images" in capsys.readouterr().out
