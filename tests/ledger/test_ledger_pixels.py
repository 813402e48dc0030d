import os
import pickle
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ducats.data.domain import UNLABELLED, VOID
from ducats.ledger import Ledger, Request, RequestWriter, TargetMaps, label_ledger
from ducats.ledger.units import clicks_per_unit

KEYS = [f"img/{i}.png" for i in range(10)]


def count_pieces(labels: dict[int, int], width: int) -> int:
    """Count the pieces of a unit by flood fill."""
    left, found = dict(labels), 0
    while left:
        found += 1
        start, label = left.popitem()
        edge = [start]
        while edge:
            y, x = divmod(edge.pop(), width)
            for v, u in ((y, x - 1), (y, x + 1), (y - 1, x), (y + 1, x)):
                if 0 <= u < width and left.get(v * width + u) == label:
                    del left[v * width + u]
                    edge.append(v * width + u)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_clicks_equal_a_flood_fill(seed: int) -> None:
    rng = np.random.default_rng(seed)
    expected, position, label, sizes, widths = [], [], [], [], []
    for _ in range(8):
        width, height = rng.integers(1, 8, 2)
        some = rng.permutation(width * height)[: rng.integers(1, width * height + 1)]
        classes = rng.integers(VOID, 2, len(some))
        expected.append(count_pieces(dict(zip(some.tolist(), classes.tolist(), strict=True)), int(width)))
        position.append(some)
        label.append(classes)
        sizes.append(len(some))
        widths.append(width)
    found = clicks_per_unit(
        np.concatenate(position), np.concatenate(label), np.array(sizes), np.array(widths)
    )
    assert found.tolist() == expected


SIZES = [(3, 4), (5, 2), (1, 1), (6, 6)]
PIXELS = [h * w for h, w in SIZES]


@st.composite
def label_rounds(draw: st.DrawFn) -> list[tuple[Request, Tensor]]:
    """Generate rounds of pixels, small units and whole images, in any order, without duplicates."""
    free = {i: draw(st.permutations(range(n))) for i, n in enumerate(PIXELS)}
    rounds = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        image: list[int] = []
        position: list[int] = []
        unit: list[int] = []
        for i in draw(st.lists(st.integers(0, len(PIXELS) - 1), max_size=5)):
            if len(free[i]) == PIXELS[i] and draw(st.booleans()):
                positions, free[i] = list(range(PIXELS[i])), []
            else:
                count = draw(st.integers(0, len(free[i])))
                positions, free[i] = free[i][:count], free[i][count:]
            if positions:
                cut = draw(st.integers(1, len(positions)))
                unit += [cut, len(positions) - cut] if cut < len(positions) else [cut]
                image += [i] * len(positions)
                position += positions
        labels = draw(st.lists(st.sampled_from([VOID, 0, 1, 2]), min_size=len(image), max_size=len(image)))
        sizes = torch.tensor(unit, dtype=torch.long) if draw(st.booleans()) else None
        request = Request(
            number, torch.tensor(image, dtype=torch.long), torch.tensor(position, dtype=torch.long), sizes
        )
        rounds.append((request, torch.tensor(labels, dtype=torch.int8)))
    return rounds


@settings(max_examples=60, deadline=None)
@given(rounds=label_rounds(), chunk_pixels=st.sampled_from([1, 7, 1 << 20]))
def test_a_ledger_of_pixels_equals_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[Request, Tensor]], chunk_pixels: int
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_ledger, "CHECK_CHUNK_PIXELS", chunk_pixels)
        patch.setattr(label_ledger, "ENTRY_CHUNK_PIXELS", chunk_pixels)
        ledger = Ledger(folder, KEYS[:4], SIZES)
        for number, (request, labels) in enumerate(rounds, start=1):
            request.save(folder / "requests" / "r.npz")
            ledger.append(Request.load(folder / "requests" / "r.npz") if number % 2 else request, labels)
        ledger = pickle.loads(pickle.dumps(ledger))
        naive: dict[tuple[int, int], int] = {}
        clicks, entries = 0, []
        for number, (request, labels) in enumerate(rounds, start=1):
            answers = list(
                zip(request.image.tolist(), request.position.tolist(), labels.tolist(), strict=True)
            )
            naive |= {(i, p): label for i, p, label in answers}
            entries += [(number, KEYS[i], p, label) for i, p, label in answers]
            unit_sizes = [1] * len(request) if request.unit_sizes is None else request.unit_sizes.tolist()
            for size in unit_sizes:
                unit, answers = answers[:size], answers[size:]
                clicks += count_pieces({p: label for _, p, label in unit}, SIZES[unit[0][0]][1])
            assert (ledger.spent(number), ledger.clicks(number)) == (len(naive), clicks)
        assert [tuple(e) for e in ledger.entries()] == entries
    counts = Counter(image for image, _ in naive)
    assert ledger.labels_per_image().tolist() == [counts[i] for i in range(4)]
    maps = TargetMaps(ledger, None)
    for image, (height, width) in enumerate(SIZES):
        labels = ledger.image_labels(image)
        assert list(zip(labels.position.tolist(), labels.label.tolist(), strict=True)) == [
            (p, label) for (i, p), label in naive.items() if i == image
        ]
        expected = [naive.get((image, p), UNLABELLED) for p in range(height * width)]
        assert maps.at_label_resolution(image).flatten().tolist() == expected
    for image, position in list(naive)[:3]:
        again = Request(ledger.n_rounds + 1, torch.tensor([image]), torch.tensor([position]))
        with pytest.raises(ValueError, match="twice"):
            ledger.append(again, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"position 10 is out of range for 'img/1.png', which has 10"):
        ledger.append(Request(ledger.n_rounds + 1, torch.tensor([1]), torch.tensor([10])), torch.tensor([0]))


def test_bytes_per_label(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    keys, side = [str(i) for i in range(40)], 64
    ledger = Ledger(tmp_path, keys, [(side, side)] * 40)
    picks = [torch.randperm(side * side, generator=rng)[:2000] for _ in range(30)]
    ones, pairs, whole = torch.full((2000,), 1), torch.full((1000,), 2), torch.tensor([side * side])
    rounds: list[tuple[float, list[tuple[int, Tensor, Tensor | None]]]] = [
        (5.1, [(image, picks[image], None) for image in range(10)]),  # pixels
        # Units, including the worst case.
        (6.001, [(image, picks[image], ones if image > 12 else pairs) for image in range(10, 30)]),
        (1.1, [(image, torch.arange(side * side), whole) for image in range(30, 40)]),
    ]
    for number, (limit, blocks) in enumerate(rounds, start=1):
        with RequestWriter(tmp_path / "r.npz", number) as writer:
            for block in blocks:
                writer.add(*block)
        request = Request.load(tmp_path / "r.npz")
        ledger.append(request, torch.full((len(request),), number, dtype=torch.int8))
        assert (tmp_path / f"round-{number:02d}.npz").stat().st_size < limit * len(request)
    assert ledger.clicks(3) - ledger.clicks(2) == 10
    with np.load(tmp_path / "round-01.npz") as data:  # any tool can read it
        assert {name: (data[name].dtype.str, len(data[name])) for name in data} == {
            "image": ("<i4", 10),
            "count": ("<u4", 10),
            "position": ("<u4", 20000),
            "label": ("|i1", 20000),
        }
        assert data["position"][2000:4000].tolist() == picks[1].tolist()


def test_image_labels_take_few_bytes(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, [str(i) for i in range(10_000)])
    order = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(10_000) % 345
    ledger.append(Request(1, order, torch.zeros_like(order)), labels)
    assert (tmp_path / "round-01.npz").stat().st_size < 6.1 * 10_000  # image, and a label beyond int8
    assert torch.equal(ledger.targets()[order], labels)
    assert ledger.image_labels(int(order[7])).label.tolist() == [7]


class Counting:
    """A column that counts the values read from it."""

    def __init__(self, values: np.typing.NDArray[Any]) -> None:
        self.values, self.read = values, 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> np.typing.NDArray[Any]:
        found: np.typing.NDArray[Any] = self.values[index]
        self.read += found.size
        return found


def test_only_the_labels_of_the_image_are_read(tmp_path: Path) -> None:
    """The labels of one image are found among two million without reading or holding the others."""
    images, each = 200, 10_000
    with RequestWriter(tmp_path / "r.npz", 1) as writer:
        for image in range(images):
            writer.add(image, torch.arange(each) * 2 + image % 2)
    sizes = [(200, 200)] * images
    keys = [str(i) for i in range(images)]
    labels = (torch.arange(images * each) % 19).to(torch.int8)
    tracemalloc.start()
    Ledger(tmp_path, keys, sizes).append(Request.load(tmp_path / "r.npz"), labels)
    assert tracemalloc.get_traced_memory()[1] < 3e7  # bounded by the chunk size
    tracemalloc.reset_peak()
    floor = tracemalloc.get_traced_memory()[0]
    ledger = Ledger(tmp_path, keys, sizes)
    found = TargetMaps(ledger, (200, 200))[133]
    assert tracemalloc.get_traced_memory()[1] - floor < 1e6
    tracemalloc.stop()
    assert int((found != UNLABELLED).sum()) == each
    ledger_round = ledger._rounds[0]
    position, label = Counting(ledger_round.pixel_runs.position), Counting(ledger_round.labels)
    pixel_runs = replace(ledger_round.pixel_runs, position=position)  # type: ignore[arg-type]
    ledger._rounds[0] = replace(ledger_round, pixel_runs=pixel_runs, labels=label)  # type: ignore[arg-type]
    assert len(ledger.image_labels(123).label) == each
    assert (position.read, label.read) == (each, each)


def test_a_failed_write_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path, KEYS, [(8, 8)] * 10)
    request = Request(1, torch.tensor([3, 3]), torch.tensor([5, 6]), torch.tensor([2]))
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError("no space left")

        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            ledger.append(request, torch.tensor([1, 1]))
    assert (ledger.n_rounds, len(ledger), list(tmp_path.iterdir())) == (0, 0, [])
    ledger.append(request, torch.tensor([1, 1]))
    assert (len(Ledger(tmp_path, KEYS, [(8, 8)] * 10)), ledger.clicks()) == (2, 1)


def test_rounds_of_another_process_are_loaded(tmp_path: Path) -> None:
    mine, theirs = (Ledger(tmp_path, KEYS, [(2, 2)] * 10) for _ in range(2))
    theirs.append(Request(1, torch.tensor([3]), torch.tensor([2])), torch.tensor([1]))
    assert TargetMaps(mine, (2, 2), n_rounds=1)[3].tolist() == [[-1, -1], [1, -1]]
    assert mine.n_rounds == 1
