from pathlib import Path

import pytest
import torch

from ducats.domain import UNLABELLED, VOID
from ducats.errors import UserError
from ducats.ledger import Ledger, Request

KEYS = [f"img/{i}.png" for i in range(10)]


def request(number: int, *images: int) -> Request:
    return Request(number, torch.tensor(images), torch.zeros(len(images), dtype=torch.long))


def test_what_was_bought_is_there_for_the_next_process(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(request(1, 7, 2), torch.tensor([0, 3]))
    ledger.append(request(2, 5), torch.tensor([VOID]))
    again = Ledger(tmp_path, KEYS)
    assert (again.rounds, len(again)) == (2, 3)
    assert [tuple(e) for e in again.entries()] == [
        (1, "img/7.png", 0, 0),
        (1, "img/2.png", 0, 3),
        (2, "img/5.png", 0, VOID),
    ]
    targets = again.targets()
    assert targets.tolist() == [
        UNLABELLED,
        UNLABELLED,
        3,
        UNLABELLED,
        UNLABELLED,
        VOID,
        UNLABELLED,
        0,
        -1,
        -1,
    ]


@pytest.mark.parametrize(
    ("wrong", "labels", "words"),
    [
        (request(2, 7), [1], "twice"),
        (request(2, 3, 3), [1, 1], "twice"),
        (request(2, 3, 4), [1], "asked for 2 labels, got 1"),
        (request(2, 3), [UNLABELLED], "UNLABELLED"),
        (request(3, 3), [1], "round 3 after 1"),
        (request(1, 3), [1], "round 1 after 1"),
    ],
)
def test_a_wrong_round_leaves_the_ledger_as_it_was(
    tmp_path: Path, wrong: Request, labels: list[int], words: str
) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(request(1, 7, 2), torch.tensor([0, 3]))
    before = sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir())
    with pytest.raises(ValueError, match=words):
        ledger.append(wrong, torch.tensor(labels))
    assert sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir()) == before
    assert len(ledger) == 2


def test_a_damaged_ledger_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(request(1, 1), torch.tensor([0]))
    ledger.append(request(2, 2), torch.tensor([0]))
    (tmp_path / "round-01.npz").write_bytes(b"half")
    with pytest.raises(UserError, match=r"round-01.npz cannot be read"):
        Ledger(tmp_path, KEYS)
    (tmp_path / "round-01.npz").unlink()
    with pytest.raises(UserError, match=r"a round of the ledger was removed"):
        Ledger(tmp_path, KEYS)


def test_a_smaller_pool_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path, KEYS).append(request(1, 9), torch.tensor([0]))
    with pytest.raises(UserError, match=r"names image 9, but the pool has 4"):
        Ledger(tmp_path, KEYS[:4])


def test_a_request_survives(tmp_path: Path) -> None:
    asked = Request(3, torch.tensor([4, 1]), torch.tensor([8, 0]))
    asked.save(tmp_path / "r.npz")
    back = Request.load(tmp_path / "r.npz")
    assert (back.round, back.image.tolist(), back.position.tolist()) == (3, [4, 1], [8, 0])
