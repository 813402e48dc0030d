"""Run folders: written, read and found."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import ducats
from ducats.runfolder import run_folder as run_folder_module
from ducats.runfolder.run_folder import RunFolder, _source_digest
from ducats.runfolder.search import find_run_folders
from ducats.utils.errors import UserError


def test_a_run_folder_is_written_and_read(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path / "run")
    run_folder.claim({"seed": 1}, {"classes": ["a", "b"]})
    run_folder.save_record({"kind": "stage", "epoch": 3})
    run_folder.save_confusion(3, ["a", "b"], [[4, 1], [0, 2]])
    run_folder.release()
    run_folder = RunFolder(tmp_path / "run")
    assert (run_folder.identity, run_folder.data_summary) == ({"seed": 1}, {"classes": ["a", "b"]})
    assert [stage["epoch"] for stage in run_folder.stages()] == [3]
    assert (run_folder.confusion_path / "epoch-003.csv").read_text() == "label,a,b\na,4,1\nb,0,2\n"
    assert run_folder.environment["device"]
    assert "run_folder_format" not in run_folder.environment
    assert json.loads(run_folder.environment_path.read_text())["run_folder_format"] == 3


def test_the_source_digest_covers_the_whole_package(tmp_path: Path) -> None:
    package = Path(ducats.__file__).parent
    RunFolder(tmp_path / "run").claim({}, {})
    assert RunFolder(tmp_path / "run").environment["source_digest"] == _source_digest(package)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "module.py").write_text("a = 1")
    before = _source_digest(tmp_path)
    (tmp_path / "deep" / "module.py").write_text("a = 2")
    assert _source_digest(tmp_path) != before


def test_an_active_run_is_recognised(tmp_path: Path) -> None:
    holder, reader = RunFolder(tmp_path), RunFolder(tmp_path)
    assert reader.is_active() is None
    holder.claim({}, {}, device="H200")
    assert reader.environment["device"] == "H200"
    assert reader.is_active() in (True, None)  # None where the system does not list locks
    with pytest.raises(UserError, match="another process"):
        reader.claim({}, {})
    assert reader.is_active() in (True, None)
    holder.release()
    assert not reader.is_active()


def claim(
    folder: Path, settings: Mapping[str, object], data: Mapping[str, object] | None = None
) -> RunFolder:
    run_folder = RunFolder(folder)
    run_folder.claim(settings, data or {})
    run_folder.release()
    return run_folder


def test_resuming_with_another_version_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path, {})
    monkeypatch.setattr(run_folder_module, "_source_digest", lambda _: "another")
    claim(tmp_path, {})  # there are no results to mix
    RunFolder(tmp_path).save_record({"kind": "epoch", "epoch": 1})
    with pytest.warns(UserWarning, match="another version of ducats"):
        claim(tmp_path, {})


def test_settings_may_change_until_there_are_results(tmp_path: Path) -> None:
    settings = {"seed": 1, "train": {"lr": 0.1, "epochs": 2}, **dict.fromkeys("abc", 0)}
    claim(tmp_path, {"seed": 3}, {"classes": 2})
    (tmp_path / "checkpoint.pt").touch()
    run_folder = claim(tmp_path, settings)  # the first attempt failed: nothing is lost
    assert (run_folder.identity, run_folder.data_summary) == (settings, {})
    assert not run_folder.checkpoint_path.exists()
    run_folder.save_record({"kind": "epoch", "epoch": 1})
    claim(tmp_path, settings)
    other = {"seed": 2, "train": {"lr": 0.2, "epochs": 2, "new": 1}, **dict.fromkeys("ab", 1)}
    words = "another config .seed: 1 -> 2; train.lr: 0.1 -> 0.2; train.new: None -> 1; a: 0 -> 1 and 2 more"
    with pytest.raises(UserError, match=words):
        claim(tmp_path, other)
    with pytest.raises(UserError, match=r"other data .classes: None -> 3.: "):
        claim(tmp_path, settings, {"classes": 3})
    claim(tmp_path, settings)  # the lock was released
    assert run_folder.identity == settings


def test_drafts_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as alive:
        tools = ("labels/.amendment-00001.json", "questions/round-01/.a")
        names = [f"{name}.{alive.pid}.part" for name in (*tools, "labels/.a")]
        names += ["questions/.a.999999999.part", f"questions/.a.{os.getpid()}.part", "questions/.a.x.part"]
        for name in names:
            touch(tmp_path / name)
        claim(tmp_path, {})
        left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob(".*.part"))
        assert left == names[:2]
        alive.communicate(b"\n")
    assert alive.returncode == 0  # undisturbed


def test_progress_follows_from_the_files(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path)
    assert run_folder.load_hints(1) is None
    for name in ("requests/round-02.npz", "requests/round-10.npz", "requests/round-02-hints.npz"):
        touch(tmp_path / name)
    assert (run_folder.requested_rounds(), run_folder.labelled_rounds()) == ([2, 10], [])
    for name, state in (
        ("checkpoint.pt", (False, False)),
        ("labels/round-01.npz", (True, False)),
        ("model.safetensors", (True, True)),
    ):
        touch(tmp_path / name)
        assert (run_folder.is_resumable, run_folder.finished) == state
    assert run_folder.labelled_rounds() == [1]


def test_corrupt_and_missing_files_are_named(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path)
    with pytest.raises(UserError, match=r"it has no config\.yaml"):
        _ = run_folder.identity
    for text in ("a: [", "- a", ""):
        run_folder.config_path.write_text(text)
        with pytest.raises(UserError, match=r"config\.yaml is corrupt"):
            _ = run_folder.identity
    run_folder.environment_path.write_text("{")
    with pytest.raises(UserError, match=r"environment\.json is corrupt"):
        _ = run_folder.environment


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_runs_are_found_once_and_not_inside_other_runs(tmp_path: Path) -> None:
    for name in ("b", "a/one", "a/deep/two", "b/questions", ".hidden", "1/2/3/4"):
        touch(tmp_path / name / "config.yaml")
    names = [
        folder.relative_to(tmp_path).as_posix() for folder in find_run_folders([tmp_path, tmp_path / "b"])
    ]
    assert names == ["a/deep/two", "a/one", "b"]


def test_incomplete_runs_are_found_on_request(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    for name in (".lock", "done/config.yaml", "started/.lock", "lost/metrics.jsonl", "other/text.txt"):
        touch(sweep / name)
    assert [folder.name for folder in find_run_folders([sweep])] == ["done"]
    found = find_run_folders([sweep, sweep / "other"], include_incomplete=True)
    assert [folder.name for folder in found] == ["done", "lost", "started", "other"]
    with pytest.raises(UserError, match="contains no run"):
        find_run_folders([sweep / "other"])


@pytest.mark.parametrize("include_incomplete", [False, True])
def test_bad_paths_are_refused(tmp_path: Path, include_incomplete: bool) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        find_run_folders([tmp_path / "none"], include_incomplete=include_incomplete)
    with pytest.raises(UserError, match="no paths given"):
        find_run_folders([], include_incomplete=include_incomplete)
