"""Scoring a whole pool: output files, user errors and resuming."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from commands import ducats, read_csv
from ducats.config import load_config
from ducats.deploy import TrainedModel, predict
from ducats.deploy.scoring import SCORING_BACKENDS, ScoringInterrupted, ScoringResult, score_chunk, score_pool
from ducats.deploy.scoring.files import chunk_file, load_chunk
from ducats.ledger import load_ledger
from ducats.training.distributed import make_fabric
from ducats.utils.errors import UserError
from scoring_runs import train_run, write_image_folder
from synthetic_pools import write_file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return train_run(tmp_path_factory.mktemp("score") / "run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image_folder(tmp_path_factory.mktemp("images"))


def run_score(trained: TrainedModel, pool: Path | str, out: Path, **kwargs: object) -> ScoringResult:
    return score_pool(trained, str(pool), out=out, device="cpu", **{"budget": 5, **kwargs})  # type: ignore[arg-type]


def test_picks_csv_agrees_with_predict(trained: TrainedModel, folder: Path, tmp_path: Path) -> None:
    write_file(folder / "0" / "broken.png", b"")
    try:
        found = run_score(trained, folder, tmp_path / "out")
    finally:
        (folder / "0" / "broken.png").unlink()
    predict(trained, make_fabric("cpu"), folder, tmp_path / "predictions.csv")
    printed = {row["key"]: row for row in read_csv(tmp_path / "predictions.csv")}
    rows = read_csv(tmp_path / "out" / "picks.csv")
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [row["key"] for row in rows] == found.picks.key.tolist()
    assert list(rows[0]) == ["rank", "key", "guess", "probability", "entropy", "u_data", "u_dis"]
    for row in rows:
        assert [row["guess"], *list(row.values())[3:]] == list(printed[row["key"]].values())[1:]
    assert read_csv(tmp_path / "out" / "unreadable.csv") == [{"key": "0/broken.png", "reason": "empty file"}]
    summary = json.loads((tmp_path / "out" / "score.json").read_text())
    counts = {"images": 38, "unreadable": 1, "excluded": 0, "picked": 5, "labels": 5, "candidates": 50}
    assert {name: summary[name] for name in counts} == counts
    assert summary["images_per_second"] == pytest.approx(38 / summary["seconds"])
    assert [one["images"] for one in summary["chunks"]] == [38]
    assert (found.n_samples, found.n_unreadable, found.picks_file) == (38, 1, tmp_path / "out" / "picks.csv")


def test_picks_do_not_depend_on_number_of_chunks(trained: TrainedModel, folder: Path, tmp_path: Path) -> None:
    files = []
    for n_chunks in (1, 2, 5):
        out = tmp_path / str(n_chunks)
        assert len(run_score(trained, folder, out, chunks=n_chunks, budget="15%").picks) == 6  # of 37: 5.55
        files.append((out / "picks.csv").read_bytes())
        names = sorted(path.name for path in (out / "chunks").iterdir())
        assert names == [f"chunk-{chunk}-of-{n_chunks}.npz" for chunk in range(n_chunks)]
    assert files == [files[0]] * 3


def write_table(path: Path, folder: Path, keys: Iterable[str] | None = None) -> Path:
    """Write a table of the images of a folder; their keys are relative paths, unless others are given."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    keys = [str(path.relative_to(folder)) for path in paths] if keys is None else keys
    rows = [f"{path},{key}" for path, key in zip(paths, keys, strict=False)]
    path.write_text("\n".join(["path,key", *rows]), encoding="utf-8")
    return path


def test_picks_of_a_table_of_paths_and_a_remote_pool(
    trained: TrainedModel, folder: Path, tmp_path: Path
) -> None:
    store = pytest.importorskip("fsspec").filesystem("memory")
    store.put(str(folder), "/score-pool", recursive=True)
    try:
        run_score(trained, "memory://score-pool", tmp_path / "remote", chunks=2)
    finally:
        store.rm("/score-pool", recursive=True)
    run_score(trained, write_table(tmp_path / "pool.csv", folder), tmp_path / "table")
    run_score(trained, folder, tmp_path / "folder")
    names = ("remote", "table", "folder")
    assert len({(tmp_path / name / "picks.csv").read_bytes() for name in names}) == 1


def test_labelled_samples_are_excluded(trained: TrainedModel, folder: Path, tmp_path: Path) -> None:
    labelled = [entry.key for entry in load_ledger(trained.run_folder).entries()]
    others = [f"other-{number}" for number in range(37 - len(labelled))]
    pool = write_table(tmp_path / "pool.csv", folder, [*labelled, *others])
    found = run_score(trained, pool, tmp_path / "out", exclude_labelled=True, budget=99)
    assert (found.n_excluded, set(found.picks.key)) == (20, set(others))
    all_scored = run_score(trained, pool, tmp_path / "all", budget=99)
    assert set(all_scored.picks.key) == {*labelled, *others}
    write_table(pool, folder, labelled)
    with pytest.raises(UserError, match="already labelled all readable images"):
        run_score(trained, pool, tmp_path / "none", exclude_labelled=True)


def test_finished_chunks_are_not_scored_again(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_score(trained, folder, tmp_path, chunks=3)
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    chunks, original = [], score_chunk

    def watched(trained: TrainedModel, pool: object, chunk: int, *rest: object, **more: object) -> object:
        chunks.append(chunk)
        return original(trained, pool, chunk, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("ducats.deploy.scoring.job.score_chunk", watched)
    assert run_score(trained, folder, tmp_path, chunks=3).samples_per_second is None
    assert chunks == []
    assert before == {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    chunk_file(tmp_path, 0, 3).unlink()
    corrupt = chunk_file(tmp_path, 2, 3)
    corrupt.write_bytes(corrupt.read_bytes()[:-100])
    assert load_chunk(corrupt) is None
    found = run_score(trained, folder, tmp_path, chunks=3)
    assert chunks == [0, 2]
    assert (found.n_samples, found.samples_per_second is None) == (37, False)
    assert (tmp_path / "picks.csv").read_bytes() == before["picks.csv"]


def test_changed_settings_are_refused(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_score(trained, folder, tmp_path)
    with pytest.raises(UserError, match=r"other settings .*query: 'duc' -> 'entropy'.*--out"):
        run_score(trained, folder, tmp_path, query="entropy")
    with pytest.raises(UserError, match="labels: 5 -> 6"):
        run_score(trained, folder, tmp_path, budget=6)
    run_score(trained, folder, tmp_path, chunks=2)  # the number of chunks may change
    shutil.rmtree(tmp_path / "chunks")

    def ended(*_: object, **__: object) -> None:
        raise ScoringInterrupted("ended")

    monkeypatch.setitem(cast(dict[str, object], SCORING_BACKENDS), "ended", ended)
    with pytest.raises(ScoringInterrupted):
        run_score(trained, folder, tmp_path, query="entropy", backend="ended")
    assert not (tmp_path / "picks.csv").exists()  # it belonged to the other query
    assert (tmp_path / "chunks").is_dir()
    run_score(trained, folder, tmp_path)  # no chunks left that could be mixed up
    (tmp_path / "settings.json").write_text("{half", encoding="utf-8")
    with pytest.raises(UserError, match=r"settings\.json is corrupt"):
        run_score(trained, folder, tmp_path)


def test_output_folder_is_locked(trained: TrainedModel, folder: Path, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / ".lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is scoring into"):
            run_score(trained, folder, tmp_path)


def test_duplicate_keys_are_refused(trained: TrainedModel, folder: Path, tmp_path: Path) -> None:
    pool = write_table(tmp_path / "pool.csv", folder, [str(index % 30) for index in range(37)])
    with pytest.raises(UserError, match=r"two samples of the pool have the key '\d+'"):
        run_score(trained, pool, tmp_path / "out", budget=37, query="entropy")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"budget": "many"}, "--budget many is neither a count"),
        ({"budget": 0}, "--budget 0 is 0 labels; choose at least 1"),
        ({"budget": "0.1%"}, "--budget 0.1% is 0 labels of a pool of 37"),
        ({"budget": "101%"}, "--budget 101% is 37 labels of a pool of 37"),
        ({"processes": 0}, "--processes must be at least 1, not 0"),
        ({"chunks": 0}, "--chunks must be at least 1, not 0"),
        ({"batch_size": 0}, "--batch-size must be at least 1, not 0"),
        ({"backend": "steam"}, "no backend 'steam'"),
        ({"query": "las"}, "--query las cannot score a pool"),
        ({"pool_format": "zip"}, "--pool-format zip is not a pool format"),
    ],
)
def test_invalid_arguments_are_user_errors(
    trained: TrainedModel, folder: Path, tmp_path: Path, kwargs: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run_score(trained, folder, tmp_path / "out", **kwargs)
    assert not (tmp_path / "out").exists()


def test_pool_without_readable_images(trained: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    for budget in (5, "5%"):
        with pytest.raises(UserError, match="contains no images"):
            run_score(trained, tmp_path / "pool", tmp_path / f"out-{budget}", budget=budget)
    write_file(tmp_path / "pool" / "x.png", b"no image")
    with pytest.raises(UserError, match=r"none of the 1 images of .* can be read; first: x\.png"):
        run_score(trained, tmp_path / "pool", tmp_path / "out")
    write_file(tmp_path / "file", b"")
    with pytest.raises(UserError, match="is a file; choose a folder"):
        run_score(trained, tmp_path / "pool", tmp_path / "file")


def test_run_folder_is_refused_as_output_folder(trained: TrainedModel, folder: Path) -> None:
    with pytest.raises(UserError, match="is the run folder; choose another"):
        run_score(trained, folder, trained.run_folder.path)
    assert not (trained.run_folder.path / "settings.json").exists()


def test_command_prints_summary(
    trained: TrainedModel,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = tmp_path / "pool"
    shutil.copytree(folder, pool)
    write_file(pool / "bad.png", b"")
    options = ("--budget", "3", "--device", "cpu", "--exclude-labelled", "--out", tmp_path / "out")
    command = ("score", trained.run_folder.path, pool, *options)
    assert ducats(*command) == 0
    printed = capsys.readouterr().out
    assert f"warning: unreadable images: 1; see {tmp_path / 'out' / 'unreadable.csv'}" in printed
    assert "already labelled by the run: 0" in printed
    assert "38 images scored, " in printed
    assert f"3 selected by duc: {tmp_path / 'out' / 'picks.csv'}" in printed

    def ended(*_: object, **__: object) -> None:
        raise ScoringInterrupted("process 2 was ended")

    monkeypatch.setattr("ducats.deploy.scoring.score_pool", ended)
    assert ducats(*command) == 1
    assert "process 2 was ended" in capsys.readouterr().err


def test_segmentation_is_refused(trained: TrainedModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not support segmentation"):
        run_score(replace(trained, config=load_config(["segmentation"])), tmp_path, tmp_path / "out")
