import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ducats.data.domain import UNLABELLED, VOID
from ducats.ledger import Ledger, Request, RequestWriter, TargetMaps

KEYS = [f"img/{i}.png" for i in range(10)]


def random_ledger(folder: Path, sizes: list[tuple[int, int]], share: float, seed: int = 0) -> Ledger:
    ledger = Ledger(folder, KEYS[: len(sizes)], sizes, "original")
    generator = torch.Generator().manual_seed(seed)
    with RequestWriter(folder / "r.npz", 1) as writer:
        for image, (height, width) in enumerate(sizes):
            order = torch.randperm(height * width, generator=generator)
            writer.add(image, order[: int(share * height * width)])
    request = Request.load(folder / "r.npz")
    ledger.append(request, torch.randint(0, 5, (len(request),), generator=generator))
    return ledger


GRIDS = [((32, 64), (20, 40)), ((30, 45), (7, 11)), ((9, 5), (20, 13)), ((8, 8), (8, 8)), ((13, 7), (13, 14))]


@pytest.mark.parametrize(("old", "new"), GRIDS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.7, 1.0])
def test_labels_on_another_grid(
    tmp_path: Path, old: tuple[int, int], new: tuple[int, int], share: float
) -> None:
    ledger = random_ledger(tmp_path, [old], share)
    # nearest: as Pillow resizes the map.
    full = TargetMaps(ledger, None).at_label_resolution(0)
    image = Image.fromarray((full + 100).to(torch.uint8).numpy())
    resized = np.asarray(image.resize(new[::-1], Image.Resampling.NEAREST)).astype(int) - 100
    assert TargetMaps(ledger, new, fill="nearest")[0].tolist() == resized.tolist()
    # cell: each cell takes the label nearest to its centre.
    best: dict[tuple[int, int], tuple[Fraction, int, int]] = {}
    for position, label in zip(*(t.tolist() for t in ledger.image_labels(0)), strict=True):
        y, x = divmod(position, old[1])
        # The pixel's centre in cells.
        v, u = Fraction(2 * y + 1, 2) * new[0] / old[0], Fraction(2 * x + 1, 2) * new[1] / old[1]
        i, j = int(v), int(u)
        away = ((v - i - Fraction(1, 2)) * old[0] / new[0]) ** 2
        away += ((u - j - Fraction(1, 2)) * old[1] / new[1]) ** 2
        best[i, j] = min(best.get((i, j), (away, position, label)), (away, position, label))
    expected = torch.full(new, UNLABELLED)
    for (i, j), (_, _, label) in best.items():
        expected[i, j] = label
    assert TargetMaps(ledger, new)[0].tolist() == expected.tolist()
    if share == 1 and new[0] <= old[0] and new[1] <= old[1]:
        assert int((expected == UNLABELLED).sum()) == 0


def test_target_maps_support_indexing_and_pickling(tmp_path: Path) -> None:
    ledger = random_ledger(tmp_path, [(6, 8), (4, 4), (6, 8)], 0.5)
    maps = TargetMaps(ledger, (3, 4), n_rounds=1)
    assert (maps.shape, maps.dtype, maps.ndim, len(maps)) == (torch.Size((3, 3, 4)), torch.int8, 3, 3)
    both = torch.stack([maps[2], maps[0]])
    for index in (torch.tensor([2, 0]), [2, 0], torch.tensor([2, 0], dtype=torch.int32)):
        assert torch.equal(maps[index], both)
    assert torch.equal(maps[::2], both.flip(0))
    assert torch.equal(maps[torch.tensor([True, False, True])], both.flip(0))
    assert torch.equal(maps[-1], maps[2])
    assert maps[torch.tensor([], dtype=torch.long)].shape == (0, 3, 4)
    assert bool((TargetMaps(ledger, (3, 4), n_rounds=0)[:] == UNLABELLED).all())
    assert torch.equal(pickle.loads(pickle.dumps(maps))[:], maps[:])
    with pytest.raises(ValueError, match="several sizes"):
        _ = TargetMaps(ledger, None).shape
    with pytest.raises(ValueError, match="grid differs"):
        TargetMaps(ledger, (3, 4), resolution="network")
    with pytest.raises(ValueError, match="cell or nearest"):
        TargetMaps(ledger, (3, 4), fill="mean")  # type: ignore[arg-type]


def test_labels_beyond_int8(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS[:1], [(1, 4)])
    ledger.append(Request(1, torch.tensor([0]), torch.tensor([2])), torch.tensor([127]))
    assert TargetMaps(ledger, (1, 4))[0].tolist() == [[-1, -1, 127, -1]]
    assert TargetMaps(ledger, (1, 4)).dtype == torch.int8
    ledger.append(Request(2, torch.tensor([0]), torch.tensor([0])), torch.tensor([300]))
    maps = TargetMaps(ledger, (1, 4))
    assert (maps.dtype, maps[0].dtype, maps[0].tolist()) == (torch.int16, torch.int16, [[300, -1, 127, -1]])


@pytest.mark.parametrize("fill", ["cell", "nearest"])
def test_pixels_known_to_be_void_are_void(tmp_path: Path, fill: Any) -> None:
    ledger = random_ledger(tmp_path, [(6, 8)], 0.0)
    void = torch.zeros(1, 3, 4, dtype=torch.uint8)
    void[0, 2, 1] = 1
    found = TargetMaps(ledger, (3, 4), void=void, fill=fill)
    assert (found[0] == VOID).nonzero().tolist() == [[2, 1]]
    assert (found.at_label_resolution(0) == VOID).nonzero().tolist() == [[4, 2], [4, 3], [5, 2], [5, 3]]


@pytest.mark.parametrize("fill", ["cell", "nearest"])
@pytest.mark.parametrize("position", [4 * 8 + 2, 5 * 8 + 3])  # the first of four pixels, and the last
def test_an_acquired_label_takes_precedence_over_void(tmp_path: Path, fill: Any, position: int) -> None:
    ledger = Ledger(tmp_path, KEYS[:1], [(6, 8)], "original")
    ledger.append(Request(1, torch.tensor([0]), torch.tensor([position])), torch.tensor([3]))
    void = torch.ones(1, 3, 4, dtype=torch.uint8)
    bare, found = (TargetMaps(ledger, (3, 4), void=given, fill=fill) for given in (None, void))
    kept = bare[0] >= 0
    assert int(kept.sum()) == (fill == "cell" or position == 5 * 8 + 3)  # Pillow takes the last of four
    assert torch.equal(found[0], torch.where(kept, 3, VOID).to(torch.int8))
    assert found.at_label_resolution(0).flatten()[position] == 3
    assert int((found.at_label_resolution(0) == VOID).sum()) == 47


def test_an_answer_that_no_class_applies_stays_void(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS[:1], [(2, 2)])
    ledger.append(Request(1, torch.tensor([0]), torch.tensor([1])), torch.tensor([VOID]))
    maps = TargetMaps(ledger, (2, 2), void=torch.tensor([[[1, 0], [0, 0]]]))
    assert maps[0].tolist() == [[VOID, VOID], [UNLABELLED, UNLABELLED]]
    assert maps.acquired_mask(0).tolist() == [[False, True], [False, False]]
    assert not TargetMaps(ledger, (2, 2), n_rounds=0).acquired_mask(0).any()


def test_image_and_pixel_targets_are_not_interchangeable(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use TargetMaps"):
        Ledger(tmp_path, KEYS, [(2, 2)] * 10).targets()
    with pytest.raises(ValueError, match=r"use Ledger.targets"):
        TargetMaps(Ledger(tmp_path, KEYS), (2, 2))
    with pytest.raises(ValueError, match="sizes must have shape"):
        Ledger(tmp_path, KEYS, [(2, 2)])
