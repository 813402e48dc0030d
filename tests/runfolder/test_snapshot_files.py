"""Snapshot files: round trip, corrupt files, thumbnails."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ducats.ledger import Ledger, Request
from ducats.runfolder import snapshot_files
from ducats.runfolder.hints import AnnotatorHints
from ducats.runfolder.pool_file import PoolInfo
from ducats.runfolder.run_folder import RunFolder
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.errors import UserError


def small(number: int, rows: int = 3) -> Snapshot:
    """Make a snapshot whose values survive the stored dtypes unchanged."""
    ramp = np.arange(rows)
    columns: dict[str, Any] = dict.fromkeys(("is_target", "sampled", "picked", "is_labelled"), ramp % 2 == 0)
    columns |= dict.fromkeys(("image", "position", "label", "predicted"), ramp)
    names = ("probability", "entropy", "u_dis", "u_data", "log_u_dis", "log_alpha0")
    columns |= dict.fromkeys(names, ramp / 4)
    columns |= {"top_classes": np.stack([ramp, ramp + 1], 1), "log_alpha": np.stack([ramp + 0.5, ramp], 1)}
    columns |= {"feature_rows": np.array([0, 2]), "features": np.array([[1.5], [-1.5]])}
    columns |= {"z_rows": np.array([2]), "z": np.array([[0.25, 2.0, -1.0]])}
    explained = np.array([1.0])
    return Snapshot(number, epoch=7, pool=rows, source=0, explained_variance_ratio=explained, **columns)


def test_snapshots_are_loaded_in_chronological_order(tmp_path: Path) -> None:
    assert snapshot_files.load_snapshots(tmp_path) == []
    for number in (0, 100, 2, 11, 1):
        snapshot_files.write_snapshot_file(tmp_path, small(number, 3 + number))
    found = snapshot_files.load_snapshots(tmp_path)
    assert [one.round for one in found] == [1, 2, 11, 100, 0]
    for one in found:
        for field in fields(Snapshot):
            np.testing.assert_array_equal(
                getattr(one, field.name), getattr(small(one.round, len(one)), field.name)
            )
    assert (found[0].epoch, found[0].pool, len(found[0])) == (7, 4, 4)
    kinds = {"is_target": "bool", "image": "int32", "predicted": "int16", "u_dis": "float32"}
    kinds |= {"features": "float16", "z": "float32"}
    assert {name: str(getattr(found[0], name).dtype) for name in kinds} == kinds


@pytest.mark.parametrize(
    "wrong",
    [
        {"label": np.arange(2)},
        {"top_classes": np.zeros((4, 2))},
        {"feature_rows": np.array([0])},
        {"z_rows": np.array([3])},
        {"explained_variance_ratio": np.array([0.5, 0.5])},
    ],
)
def test_inconsistent_columns_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    snapshot_files.write_snapshot_file(tmp_path, replace(small(1), **wrong))
    with pytest.raises(UserError, match=r"round-01.npz is corrupt .*; restore it"):
        snapshot_files.load_snapshots(tmp_path)


def test_corrupt_file_is_named(tmp_path: Path) -> None:
    snapshot_files.write_snapshot_file(tmp_path, small(1))
    snapshot_files.write_snapshot_file(tmp_path, small(0))
    path = snapshot_files.snapshot_path(tmp_path, 0)
    whole = path.read_bytes()
    for broken in (b"", whole[:200], whole[:-50], whole.replace(b"u_dis", b"U_dis")):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"final.npz is corrupt .*; restore it"):
            snapshot_files.load_snapshots(tmp_path)
    readable, [problem] = snapshot_files.load_readable_snapshots(tmp_path)
    assert [one.round for one in readable] == [1]
    assert "final.npz is corrupt" in problem


def test_hints_survive_saving(tmp_path: Path) -> None:
    values = {name: np.array([0.5, 0.25], np.float32) for name in AnnotatorHints.__dataclass_fields__}
    hints = AnnotatorHints(**{**values, "guess": np.array([3, 200]), "segment": np.array([-1, 70000])})
    run_folder = RunFolder(tmp_path)
    run_folder.save_hints(4, hints)
    back = run_folder.load_hints(4)
    assert back is not None
    assert (back.guess.tolist(), back.segment.tolist()) == ([3, 200], [-1, 70000])
    assert back.u_dis.tolist() == [0.5, 0.25]
    (tmp_path / "requests" / "round-04-hints.npz").write_bytes(b"half")
    with pytest.raises(UserError, match=r"round-04-hints.npz is corrupt"):
        run_folder.load_hints(4)


def test_round_labels_match_the_ledger(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).load_round_labels(1) is None
    ledger = Ledger(tmp_path / "labels", ["a", "b", "c"], [[2, 3]] * 3)
    # The whole third image, then a unit of two pixels and one of one pixel of the first image.
    image = torch.tensor([2, 2, 2, 2, 2, 2, 0, 0, 0])
    position = torch.tensor([0, 1, 2, 3, 4, 5, 4, 1, 0])
    labels = torch.tensor([0, 1, 2, 3, 4, -2, 1, 1, 0])
    ledger.append(Request(1, image, position, torch.tensor([6, 2, 1])), labels)
    ledger.append(Request(2, torch.tensor([1]), torch.tensor([3])), torch.tensor([200]))
    for number, expected in ((1, (image, position, labels)), (2, torch.tensor([[1], [3], [200]]))):
        found = RunFolder(tmp_path).load_round_labels(number)
        assert found is not None
        columns = (found.image, found.position, found.label)
        assert [column.tolist() for column in columns] == [values.tolist() for values in expected]
    assert RunFolder(tmp_path).load_round_labels(3) is None
    (tmp_path / "labels" / "round-02.npz").write_bytes(b"no file of ours")
    with pytest.raises(UserError, match=r"round-02.npz is corrupt .*; restore it"):
        RunFolder(tmp_path).load_round_labels(2)


def test_keys_and_sizes_of_the_pool(tmp_path: Path) -> None:
    run_folder, path = RunFolder(tmp_path), tmp_path / "pool.json"
    assert run_folder.load_pool() == PoolInfo((), None)
    path.write_text(json.dumps(["a", "ü"]))
    assert run_folder.load_pool() == PoolInfo(["a", "ü"], None)
    for shape in ({"size": [2, 3]}, {"sizes": [[2, 3], [2, 3]]}):
        path.write_text(json.dumps({"resolution": "network", **shape, "keys": ["a", "b"]}))
        found = run_folder.load_pool()
        assert found.sizes is not None
        assert (found.keys, found.sizes.tolist()) == (["a", "b"], [[2, 3], [2, 3]])
    for broken in ("[", "3", "{}"):
        path.write_text(broken)
        with pytest.raises(UserError, match=r"pool.json is corrupt .*; restore it"):
            run_folder.load_pool()


def test_thumbnails_are_found_by_pool_index(tmp_path: Path) -> None:
    for image, kind in ((3, "png"), (1234567, "jpg")):
        path = snapshot_files.thumbnail_path(tmp_path, image, kind)  # type: ignore[arg-type]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = [snapshot_files.find_thumbnail(tmp_path, image) for image in (3, 1234567, 4)]
    assert [path and path.name for path in found] == ["000003.png", "1234567.jpg", None]


def test_all_columns_are_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text(encoding="utf-8")
    table = text.partition("## Snapshots")[2].partition("\n## ")[0]
    names = [
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    ]
    assert sorted(names) == sorted(field.name for field in fields(Snapshot))
