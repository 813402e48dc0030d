import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from ducats.ledger import Request, RequestWriter, central_pixels
from ducats.utils import files
from ducats.utils.errors import UserError


def as_lists(request: Request) -> tuple[int, list[int], list[int], list[int] | None]:
    unit_sizes = None if request.unit_sizes is None else request.unit_sizes.tolist()
    return request.round, request.image.tolist(), request.position.tolist(), unit_sizes


def test_a_request_survives_saving_and_pickling(tmp_path: Path) -> None:
    request = Request(3, torch.tensor([4, 1]), torch.tensor([8, 0]))
    request.save(tmp_path / "r.npz")
    loaded = Request.load(tmp_path / "r.npz")
    for back in (loaded, pickle.loads(pickle.dumps(request)), pickle.loads(pickle.dumps(loaded))):
        assert (len(back), as_lists(back)) == (2, (3, [4, 1], [8, 0], None))
    (tmp_path / "r.npz").write_bytes(b"half")
    with pytest.raises(UserError, match=r"r.npz is corrupt"):
        Request.load(tmp_path / "r.npz")


@pytest.mark.parametrize(
    ("image", "position", "unit_sizes", "words"),
    [
        ([1, 1], [0], None, "shape"),
        ([-1], [0], None, "each image"),
        ([1], [-1], None, "each position"),
        ([1], [2**32], None, "each position"),
        ([1], [0.5], None, "each position"),
        ([1, 1, 2], [0, 1, 0], [1, 2], "units"),  # across two images
        ([1, 1], [0, 1], [1], "units"),
        ([1, 1], [0, 1], [2, 1], "units"),
        ([1, 1], [0, 1], [2, 0], "units"),
    ],
)
def test_invalid_locations_are_refused(
    image: list[int], position: list[float], unit_sizes: list[int] | None, words: str
) -> None:
    sizes = None if unit_sizes is None else torch.tensor(unit_sizes)
    with pytest.raises(ValueError, match=words):
        Request(1, torch.tensor(image), torch.tensor(position), sizes)


def test_blocks_and_images_of_a_request() -> None:
    image, position = torch.tensor([2, 2, 2, 5, 2]), torch.tensor([7, 3, 9, 0, 1])
    request = Request(1, image, position, torch.tensor([2, 1, 1, 1]))
    blocks = [(b.image, b.position.tolist(), b.unit_sizes.tolist()) for b in request.blocks()]
    assert blocks == [(2, [7, 3, 9], [2, 1]), (5, [0], [1]), (2, [1], [1])]
    order = torch.arange(5)
    images = [(a.image, a.position.tolist(), order[a.indices].tolist()) for a in request.by_image()]
    assert images == [(2, [7, 3, 9, 1], [0, 1, 2, 4]), (5, [0], [3])]


def test_a_writer_gives_the_same_request_as_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    genuine = files.write_atomically

    def count(path: Path, *rest: object) -> None:
        calls.append(path)
        genuine(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "write_atomically", count)
    with RequestWriter(tmp_path / "new" / "r.npz", 2) as writer:
        writer.add(3, torch.tensor([5, 1, 2]))
        writer.add(1, torch.arange(4), torch.tensor([4]))
        writer.add(0, torch.tensor([], dtype=torch.long))
        writer.add(4, torch.tensor([8, 9, 3], dtype=torch.int32), torch.tensor([2, 1]))
        assert len(writer) == 10
    assert calls == [tmp_path / "new" / "r.npz"]  # one write: a kill leaves all of it or nothing
    expected = (2, [3, 3, 3, 1, 1, 1, 1, 4, 4, 4], [5, 1, 2, 0, 1, 2, 3, 8, 9, 3], [1, 1, 1, 4, 2, 1])
    assert as_lists(Request.load(tmp_path / "new" / "r.npz")) == expected
    assert as_lists(Request(2, *map(torch.tensor, expected[1:]))) == expected


def test_a_large_request_spools_and_a_failed_one_leaves_no_file(tmp_path: Path) -> None:
    many = torch.randperm(1 << 21, generator=torch.Generator().manual_seed(0))  # 8 MB of positions
    with RequestWriter(tmp_path / "r.npz", 1) as writer:
        for image in range(3):
            writer.add(image, many)
    back = Request.load(tmp_path / "r.npz")
    assert len(back) == 3 * len(many)
    assert all(torch.equal(block.position, many) for block in back.blocks())
    writer = RequestWriter(tmp_path / "other.npz", 1)
    with pytest.raises(ValueError, match="each position"), writer:
        writer.add(0, torch.cat([many, many, -many]))
    writer = RequestWriter(tmp_path / "other.npz", 1)
    writer.add(0, many)
    with pytest.raises(KeyboardInterrupt), writer:
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["r.npz"]


def test_only_some_units_of_a_request() -> None:
    # Units of 2, 1 and 3 pixels in two images.
    image, position = torch.tensor([0, 0, 0, 3, 3, 3]), torch.tensor([5, 6, 9, 0, 1, 2])
    request = Request(7, image, position, torch.tensor([2, 1, 3]))
    some = request.subset(torch.tensor([True, True, False, True, True, True]))
    assert as_lists(some) == (7, [0, 0, 3, 3, 3], [5, 6, 0, 1, 2], [2, 3])
    assert len(request.subset(torch.zeros(6, dtype=torch.bool))) == 0
    images = Request(1, torch.tensor([4, 1, 5]), torch.tensor([0, 0, 0]))
    assert as_lists(images.subset(torch.tensor([True, False, True]))) == (1, [4, 5], [0, 0], None)
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
