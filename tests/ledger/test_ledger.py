from pathlib import Path

import numpy as np
import pytest
import torch

from ducats.data.domain import UNLABELLED, VOID
from ducats.ledger import Ledger, Request, RequestWriter, TargetMaps, load_ledger, load_request, open_ledger
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

KEYS = [f"img/{i}.png" for i in range(10)]


def request(number: int, *images: int) -> Request:
    return Request(number, torch.tensor(images, dtype=torch.long), torch.zeros(len(images), dtype=torch.long))


def test_labels_are_there_for_the_next_process(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(request(1, 7, 2), torch.tensor([0, 3]))
    ledger.append(request(2, 5), torch.tensor([VOID]))
    again = Ledger(tmp_path, KEYS)
    assert (again.n_rounds, len(again), again.clicks()) == (2, 3, 3)
    assert [tuple(e) for e in again.entries()] == [
        (1, "img/7.png", 0, 0),
        (1, "img/2.png", 0, 3),
        (2, "img/5.png", 0, VOID),
    ]
    expected = [UNLABELLED] * 10
    expected[2], expected[5], expected[7] = 3, VOID, 0
    assert again.targets().tolist() == expected
    assert again.targets(1)[5] == UNLABELLED


@pytest.mark.parametrize(
    ("wrong", "labels", "words"),
    [
        (request(2, 7), [1], "twice"),
        (request(2, 3, 3), [1, 1], "twice"),
        (request(2, 3, 4, 3), [1, 1, 1], "twice"),
        (request(2, 3, 4), [1], "expected 2 labels, got 1"),
        (request(2, 3), [UNLABELLED], "UNLABELLED"),
        (request(2, 3), [VOID - 1], "must be a class"),
        (request(2, 3), [40000], "must be a class"),
        (request(2, 10), [1], "image 10 is out of range"),
        (Request(2, torch.tensor([3]), torch.tensor([1])), [1], "position 1 is out of range for 'img/3.png'"),
        (request(3, 3), [1], "expected round 2, got round 3"),
        (request(1, 3), [1], "expected round 2, got round 1"),
    ],
)
def test_an_invalid_round_leaves_the_ledger_unchanged(
    tmp_path: Path, wrong: Request, labels: list[int], words: str
) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(request(1, 7, 2), torch.tensor([0, 3]))
    before = sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir())
    with pytest.raises(ValueError, match=words):
        ledger.append(wrong, torch.tensor(labels))
    assert sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir()) == before
    assert len(ledger) == 2


def test_a_corrupt_ledger_raises(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(request(1, 1), torch.tensor([0]))
    ledger.append(request(2, 2), torch.tensor([0]))
    (tmp_path / "round-01.npz").write_bytes(b"half")
    with pytest.raises(UserError, match=r"round-01.npz is corrupt"):
        Ledger(tmp_path, KEYS)
    (tmp_path / "round-01.npz").unlink()
    with pytest.raises(UserError, match=r"restore the missing round"):
        Ledger(tmp_path, KEYS)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"image": [1, 2], "label": [0, 1, 1]}, "3 labels for 2 locations"),
        ({"image": [1, 2], "count": [1], "label": [0, 1]}, "differ in length"),
        ({"image": [1], "count": [2], "position": [5], "label": [0, 1]}, "number of positions"),
        ({"image": [1, 2], "count": [1, 0], "label": [0]}, "without a location"),
        ({"image": [-1], "label": [0]}, "without an image"),
        ({"image": [1], "position": [0]}, "'label'"),
        ({"image": [1, 2, 3], "label": [0, 0, 0], "seconds": [1, 1]}, "2 annotation times for 3 units"),
    ],
)
def test_an_inconsistent_round_raises(tmp_path: Path, columns: dict[str, list[int]], words: str) -> None:
    np.savez(tmp_path / "round-01.npz", allow_pickle=False, **{k: np.array(v) for k, v in columns.items()})
    with pytest.raises(UserError, match=rf"round-01.npz is corrupt .*{words}"):
        Ledger(tmp_path, KEYS)


def test_a_smaller_pool_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path, KEYS).append(request(1, 9), torch.tensor([0]))
    with pytest.raises(UserError, match=r"has image 9, but the pool has only 4"):
        Ledger(tmp_path, KEYS[:4])


@pytest.mark.parametrize("sizes", [[[4, 6], [4, 6]], [[4, 6], [3, 5]]])
def test_a_run_folder_stores_sizes(tmp_path: Path, sizes: list[list[int]]) -> None:
    run_folder = RunFolder(tmp_path)
    ledger = open_ledger(run_folder, ["ä", "b"], torch.tensor(sizes), "original")
    with RequestWriter(run_folder.request_path(1), 1) as writer:
        writer.add(1, torch.tensor([14]))
    loaded = load_request(run_folder, 1)
    assert loaded is not None
    ledger.append(loaded, torch.tensor([3]))
    again = load_ledger(RunFolder(tmp_path))
    assert again.resolution == "original"
    assert again.sizes is not None
    assert torch.equal(again.sizes, torch.tensor(sizes))
    assert [tuple(e) for e in again.entries()] == [(1, "b", 14, 3)]


# ---- annotation time and empty rounds

NONE = torch.zeros(0, dtype=torch.long)


def region_request(number: int = 1) -> Request:
    """Units of 2, 1 and 3 pixels in two images."""
    image, position = torch.tensor([0, 0, 0, 3, 3, 3]), torch.tensor([5, 6, 9, 0, 1, 2])
    return Request(number, image, position, torch.tensor([2, 1, 3]))


def test_seconds_add_up_by_round(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(request(1, 4, 1), torch.tensor([0, 1]), torch.tensor([2.5, 4.0]))
    ledger.append(request(2, 0), torch.tensor([0]))
    ledger.append(request(3, 2, 3), torch.tensor([1, 1]), torch.tensor([0.0, float("nan")]))
    ledger.append(request(4, 5), torch.tensor([1]), torch.tensor([8.0]), unanswered_seconds=3.25)
    for reopened in (ledger, Ledger(tmp_path, KEYS)):
        assert [reopened.seconds(n) for n in range(5)] == [None, 6.5, 6.5, 6.5, 17.75]
        assert reopened.seconds() == 17.75
        assert [reopened.n_units(n) for n in range(5)] == [0, 2, 3, 5, 6]
        assert [reopened.n_timed_units(n) for n in range(5)] == [0, 2, 2, 2, 3]


def test_seconds_take_no_space_if_unknown(tmp_path: Path) -> None:
    for folder, seconds in (("a", None), ("b", torch.zeros(2)), ("c", torch.tensor([1.0, 0.0]))):
        Ledger(tmp_path / folder, KEYS).append(request(1, 4, 1), torch.tensor([0, 1]), seconds)
    one, two = ((tmp_path / folder / "round-01.npz").read_bytes() for folder in "ab")
    assert one == two
    assert "seconds" not in np.load(tmp_path / "b" / "round-01.npz")
    found = np.load(tmp_path / "c" / "round-01.npz")["seconds"]
    assert (found.dtype, found.tolist()) == (np.float32, [1.0, 0.0])


def test_seconds_are_per_unit_and_valid(tmp_path: Path) -> None:
    ledger, labels = Ledger(tmp_path, KEYS, [[4, 4]] * 10), torch.zeros(6, dtype=torch.long)
    for wrong, words in (
        (torch.ones(6), "seconds of 3 units, got 6"),
        (torch.tensor([1.0, -1.0, 0.0]), "seconds must be finite"),
        (torch.tensor([1.0, torch.inf, 0.0]), "seconds must be finite"),
    ):
        with pytest.raises(ValueError, match=words):
            ledger.append(region_request(), labels, wrong)
    assert not list(tmp_path.iterdir())
    ledger.append(region_request(), labels, torch.tensor([1.0, 2.0, 3.5]))
    assert (ledger.seconds(), ledger.n_units(), ledger.n_timed_units(), len(ledger)) == (6.5, 3, 3, 6)


def test_an_empty_round(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(request(1), NONE)
    ledger.append(request(2, 3), torch.tensor([1]))
    ledger.append(request(3), NONE, unanswered_seconds=4.0)
    for reopened in (ledger, Ledger(tmp_path, KEYS)):
        assert (reopened.n_rounds, len(reopened), reopened.seconds()) == (3, 1, 4.0)
        assert [reopened.spent(n) for n in range(4)] == [0, 0, 1, 1]
        assert reopened.targets().tolist() == [-1, -1, -1, 1, *[-1] * 6]
        assert reopened.targets(1).tolist() == [-1] * 10
        assert [entry.round for entry in reopened.entries()] == [2]
        assert reopened.labels_per_image().tolist() == [0, 0, 0, 1, *[0] * 6]


def test_an_empty_round_of_pixels(tmp_path: Path) -> None:
    with RequestWriter(tmp_path / "request.npz", 1) as writer:
        writer.add(2, NONE, NONE)
    empty = Request.load(tmp_path / "request.npz")
    assert (len(empty), empty.n_units, list(empty.blocks())) == (0, 0, [])
    ledger = Ledger(tmp_path / "labels", KEYS, [[4, 4]] * 10)
    ledger.append(empty, torch.zeros(0, dtype=torch.int8))
    ledger.append(region_request(2), torch.tensor([0, 0, 1, 2, 2, 2]))
    again = Ledger(tmp_path / "labels", KEYS, [[4, 4]] * 10)
    assert (again.clicks(1), again.clicks(), again.n_units()) == (0, 3, 3)
    assert int((TargetMaps(again, (4, 4), 1)[:] != -1).sum()) == 0
    assert int((TargetMaps(again, (4, 4), 2)[:] != -1).sum()) == 6
