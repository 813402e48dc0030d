"""The placement of images does not change results."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from commands import write_images
from ducats.data.decoding import decode_images, image_decoder
from ducats.data.domain import UNLABELLED, VOID, Images, Subset
from ducats.data.store import LazyFileArrays
from ducats.data.toy import toy
from ducats.ledger import Ledger, Request, TargetMaps
from ducats.models import EvidentialModel, small_cnn
from ducats.settings import StreamViews, View
from ducats.training import placement
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.training.streams import Streams
from ducats.utils.randomness import global_seed
from present import present

CPU = torch.device("cpu")


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ducats-images"]


def test_prefetching_keeps_the_order_and_ends() -> None:
    assert list(placement.prefetch(lambda number: number * number, 20)) == [n * n for n in range(20)]
    assert not workers()


def test_prefetching_is_bounded() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    work = placement.prefetch(make, 100)
    assert next(work) == 0
    work.close()
    assert not workers()
    assert len(made) <= placement.PREFETCH_BATCHES + 3


def test_an_error_in_the_worker_is_raised_in_order() -> None:
    def make(number: int) -> int:
        if number == 2:
            raise ValueError("image 2 is broken")
        return number

    work = placement.prefetch(make, 5)
    assert [next(work), next(work)] == [0, 1]
    with pytest.raises(ValueError, match="image 2 is broken"):
        next(work)
    assert not workers()


def test_on_a_cpu_images_are_not_moved() -> None:
    data = toy()
    assert placement.place_images([data.source.images, data.pool], CPU)[1] is data.pool


JITTERED = View(crop="random", size=6, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1))
JITTERED_VIEWS = StreamViews(JITTERED, JITTERED, JITTERED)


def known_targets(pool: Images) -> Tensor:
    targets = torch.full((len(pool),), UNLABELLED)
    targets[:9] = 1
    return targets


@pytest.fixture
def file_pools(tmp_path: Path) -> tuple[Images, Images]:
    """A pool decoded at once, and the same pool decoded batch by batch."""
    pixels = torch.randint(0, 256, (24, 3, 10, 9), dtype=torch.uint8)
    write_images(tmp_path, pixels, ["."] * 24)
    files = [(path.name, path) for path in sorted(tmp_path.iterdir())]
    decoded = decode_images(files, 8)
    return decoded, replace(decoded, pixels=LazyFileArrays(files, image_decoder(8)))


def test_streams_and_scores_do_not_depend_on_image_storage(file_pools: tuple[Images, Images]) -> None:
    data, fabric, (decoded, lazy) = toy(), make_fabric("cpu"), file_pools
    with global_seed(0, "model"):
        model = fabric.setup(EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8)))
    predictor = Predictor(model=model, view=JITTERED, batch_size=7, fabric=fabric, seed=1)

    def flat(pool: Images) -> Tensor:
        """Return all images of an epoch, and the scores of the pool."""
        streams = Streams(data.source, pool, JITTERED_VIEWS, 8, 6, seed=3)
        tensors = [predictor.score_images(pool, ("z",)).z]
        for batch in streams.epoch(2, known_targets(pool), fabric):
            tensors += [batch.source.images, present(batch.labelled).images, present(batch.unlabelled)]
        return torch.cat([tensor.flatten() for tensor in tensors])

    indirect = replace(data.pool, pixels=Subset(data.pool.pixels, torch.arange(len(data.pool))))
    for one, two in ((data.pool, indirect), (decoded, lazy)):
        assert torch.equal(flat(one), flat(two))
    assert not workers()


def test_augmentation_belongs_to_the_position_in_the_global_batch() -> None:
    data = toy()

    def source(rank: int, world: int) -> list[Tensor]:
        streams = Streams(data.source, data.pool, JITTERED_VIEWS, 8, 3, seed=3)
        fabric: Any = SimpleNamespace(
            device=CPU, global_rank=rank, world_size=world, to_device=lambda tensor: tensor
        )
        return [batch.source.images for batch in streams.epoch(0, known_targets(data.pool), fabric)]

    for whole, even, odd in zip(source(0, 1), source(0, 2), source(1, 2), strict=True):
        assert torch.equal(whole[0::2], even)
        assert torch.equal(whole[1::2], odd)


def test_small_lazy_maps_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = torch.tensor([[4, 6]] * 3)
    ledger = Ledger(tmp_path, ["a", "b", "c"], sizes)
    ledger.append(Request(1, torch.tensor([0, 2, 2]), torch.tensor([5, 0, 23])), torch.tensor([1, VOID, 2]))
    maps = TargetMaps(ledger, (4, 6))
    placed = placement.place_label_maps(maps, CPU)
    assert isinstance(placed, Tensor)
    assert torch.equal(placed, maps[:])
    assert (placed.dtype, placed.flatten(1).sum(1).tolist()) == (torch.int8, [-22, -24, -22])
    assert placement.place_label_maps(placed, CPU) is placed
    assert placement.place_label_maps(maps, CPU, "host") is maps
    monkeypatch.setattr(placement, "MAX_HOST_MAP_BYTES", 71)
    assert placement.place_label_maps(maps, CPU) is maps  # 72 bytes are too many
    labels = torch.tensor([0, 1, 2])
    assert placement.place_label_maps(labels, CPU) is labels


def test_maps_are_indexed_like_pixels() -> None:
    maps = torch.randint(VOID, 3, (5, 4, 6)).to(torch.int8)
    index = torch.tensor([3, 0, 3])
    for array in (maps, Subset(maps, torch.arange(5))):
        assert torch.equal(placement.index_batch(array, index, index, CPU), maps[index])
        assert torch.equal(placement.index_to_device(array, index, CPU), maps[index])
        assert placement.is_on_device(array, CPU) == isinstance(array, Tensor)
