from collections import Counter

import pytest
import torch
from torch import Tensor

from ducats.annotation.oracles import GroundTruthOracle
from ducats.data.domain import VOID
from ducats.ledger import Request
from ducats.utils.errors import UserError


def test_image_labels_come_in_the_order_of_the_request() -> None:
    request = Request(1, torch.tensor([2, 0]), torch.zeros(2, dtype=torch.long))
    for labels in ([5, 6, 7], torch.tensor([5, 6, 7], dtype=torch.int32)):
        oracle = GroundTruthOracle(labels)
        assert (len(oracle), oracle(request).tolist(), oracle(request).dtype) == (3, [7, 5], torch.int64)


class CountingMaps:
    """Label maps that count reads and have originals of another size."""

    def __init__(self, stored: Tensor, originals: list[Tensor]) -> None:
        self.stored, self.originals, self.reads = stored, originals, Counter[int]()
        self.shape, self.dtype, self.ndim = stored.shape, stored.dtype, 3

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: int) -> Tensor:
        self.reads[index] += 1
        return self.stored[index]

    def original(self, index: int) -> Tensor:
        self.reads[index] += 1
        return self.originals[index]


@pytest.mark.parametrize("resolution", ["network", "original"])
@pytest.mark.parametrize("kind", [torch.int8, torch.int16])
def test_pixel_labels_use_the_chosen_resolution_and_read_each_map_once(
    resolution: str, kind: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    stored = torch.randint(-2, 9, (3, 2, 3), generator=generator).to(kind)
    originals = [torch.randint(-2, 9, (5, 4 + i), generator=generator).to(kind) for i in range(3)]
    maps = CountingMaps(stored, originals)
    image = torch.tensor([2, 2, 0, 2, 2, 0])  # in several runs
    position = torch.tensor([5, 0, 3, 1, 4, 2])
    answers = GroundTruthOracle(maps, resolution)(Request(1, image, position))  # type: ignore[arg-type]
    source = list(stored) if resolution == "network" else originals
    expected = [int(source[i].flatten()[p]) for i, p in zip(image.tolist(), position.tolist(), strict=True)]
    assert answers.tolist() == [VOID if label < 0 else label for label in expected]
    assert (answers.dtype, maps.reads) == (kind, Counter({2: 1, 0: 1}))


def test_a_tensor_of_maps_is_its_own_original() -> None:
    maps = torch.tensor([[[1, -1], [2, 3]]], dtype=torch.int8)
    request = Request(1, torch.zeros(4, dtype=torch.long), torch.arange(4))
    assert GroundTruthOracle(maps, "original")(request).tolist() == [1, VOID, 2, 3]


def test_missing_ground_truth_raises() -> None:
    with pytest.raises(UserError, match="human annotators"):
        GroundTruthOracle(None)
