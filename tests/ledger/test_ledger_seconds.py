"""Annotation time, empty rounds and partly answered requests."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ducats.ledger import Ledger, Request, RequestWriter, TargetMaps, central_pixels

KEYS = [f"img/{i}.png" for i in range(6)]
NONE = torch.zeros(0, dtype=torch.long)


def image_request(number: int, *images: int) -> Request:
    return Request(number, torch.tensor(images, dtype=torch.long), torch.zeros(len(images), dtype=torch.long))


def region_request(number: int = 1) -> Request:
    """Units of 2, 1 and 3 pixels in two images."""
    image, position = torch.tensor([0, 0, 0, 3, 3, 3]), torch.tensor([5, 6, 9, 0, 1, 2])
    return Request(number, image, position, torch.tensor([2, 1, 3]))


def test_seconds_add_up_by_round(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(image_request(1, 4, 1), torch.tensor([0, 1]), torch.tensor([2.5, 4.0]))
    ledger.append(image_request(2, 0), torch.tensor([0]))
    ledger.append(image_request(3, 2, 3), torch.tensor([1, 1]), torch.tensor([0.0, float("nan")]))
    ledger.append(image_request(4, 5), torch.tensor([1]), torch.tensor([8.0]), unanswered_seconds=3.25)
    for reopened in (ledger, Ledger(tmp_path, KEYS)):
        assert [reopened.seconds(n) for n in range(5)] == [None, 6.5, 6.5, 6.5, 17.75]
        assert reopened.seconds() == 17.75
        assert [reopened.n_units(n) for n in range(5)] == [0, 2, 3, 5, 6]
        assert [reopened.n_timed_units(n) for n in range(5)] == [0, 2, 2, 2, 3]


def test_seconds_take_no_space_if_unknown(tmp_path: Path) -> None:
    for folder, seconds in (("a", None), ("b", torch.zeros(2)), ("c", torch.tensor([1.0, 0.0]))):
        Ledger(tmp_path / folder, KEYS).append(image_request(1, 4, 1), torch.tensor([0, 1]), seconds)
    one, two = ((tmp_path / folder / "round-01.npz").read_bytes() for folder in "ab")
    assert one == two
    assert "seconds" not in np.load(tmp_path / "b" / "round-01.npz")
    found = np.load(tmp_path / "c" / "round-01.npz")["seconds"]
    assert (found.dtype, found.tolist()) == (np.float32, [1.0, 0.0])


def test_seconds_are_per_unit_and_valid(tmp_path: Path) -> None:
    ledger, labels = Ledger(tmp_path, KEYS, [[4, 4]] * 6), torch.zeros(6, dtype=torch.long)
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


# ---- empty rounds


def test_an_empty_round(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS)
    ledger.append(Request(1, NONE, NONE), NONE)
    ledger.append(image_request(2, 3), torch.tensor([1]))
    ledger.append(Request(3, NONE, NONE), NONE, unanswered_seconds=4.0)
    for reopened in (ledger, Ledger(tmp_path, KEYS)):
        assert (reopened.n_rounds, len(reopened), reopened.seconds()) == (3, 1, 4.0)
        assert [reopened.spent(n) for n in range(4)] == [0, 0, 1, 1]
        assert reopened.targets().tolist() == [-1, -1, -1, 1, -1, -1]
        assert reopened.targets(1).tolist() == [-1] * 6
        assert [entry.round for entry in reopened.entries()] == [2]
        assert reopened.labels_per_image().tolist() == [0, 0, 0, 1, 0, 0]


def test_an_empty_round_of_pixels(tmp_path: Path) -> None:
    with RequestWriter(tmp_path / "request.npz", 1) as writer:
        writer.add(2, NONE, NONE)
    request = Request.load(tmp_path / "request.npz")
    assert (len(request), request.n_units, list(request.blocks())) == (0, 0, [])
    ledger = Ledger(tmp_path / "labels", KEYS, [[4, 4]] * 6)
    ledger.append(request, torch.zeros(0, dtype=torch.int8))
    ledger.append(region_request(2), torch.tensor([0, 0, 1, 2, 2, 2]))
    again = Ledger(tmp_path / "labels", KEYS, [[4, 4]] * 6)
    assert (again.clicks(1), again.clicks(), again.n_units()) == (0, 3, 3)
    assert int((TargetMaps(again, (4, 4), 1)[:] != -1).sum()) == 0
    assert int((TargetMaps(again, (4, 4), 2)[:] != -1).sum()) == 6


# ---- parts of requests


def test_only_some_units_of_a_request() -> None:
    request = region_request(7)
    some = request.subset(torch.tensor([True, True, False, True, True, True]))
    assert some.unit_sizes is not None
    found = (some.round, some.image.tolist(), some.position.tolist(), some.unit_sizes.tolist())
    assert found == (7, [0, 0, 3, 3, 3], [5, 6, 0, 1, 2], [2, 3])
    assert len(request.subset(torch.zeros(6, dtype=torch.bool))) == 0
    images = image_request(1, 4, 1, 5).subset(torch.tensor([True, False, True]))
    assert (images.image.tolist(), images.unit_sizes) == ([4, 5], None)
    with pytest.raises(ValueError, match="constant within each unit"):
        request.subset(torch.tensor([True, False, True, True, True, True]))
    with pytest.raises(ValueError, match="must have 6 entries, not 2"):
        request.subset(torch.tensor([True, False]))


def test_central_pixels_of_units() -> None:
    # On a grid of width 5: a 3 x 3 block, a bar of four, and an L with two equally near pixels.
    block, bar, corner = [0, 1, 2, 5, 6, 7, 10, 11, 12], [21, 22, 23, 24], [19, 18, 17, 14, 9]
    position = np.array([*block, *bar[::-1], *corner])
    assert central_pixels(position, np.array([9, 4, 5]), width=5).tolist() == [6, 22, 14]
    assert central_pixels(np.array([7, 3]), np.array([1, 1]), width=5).tolist() == [7, 3]
    assert len(central_pixels(np.zeros(0, np.int64), np.zeros(0, np.int64), width=5)) == 0
