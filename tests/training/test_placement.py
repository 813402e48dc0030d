"""The placement of images does not change results."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from ducats.data.decoding import decode_images, image_decoder
from ducats.data.domain import UNLABELLED, VOID, Images
from ducats.data.evaluation_split import Subset
from ducats.data.store import LazyFileArrays
from ducats.data.toy import toy
from ducats.ledger import Ledger, Request, TargetMaps
from ducats.models import EvidentialModel, small_cnn
from ducats.objectives import Batch
from ducats.settings import StreamViews, View
from ducats.training import placement
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.training.streams import Streams
from ducats.utils.randomness import global_seed

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


class IndexablePixels:
    """Indexable pixels that are not a tensor."""

    def __init__(self, pixels: Tensor) -> None:
        self._pixels = pixels
        self.shape, self.dtype, self.ndim = pixels.shape, pixels.dtype, pixels.ndim

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        return self._pixels[index]


def flat(batches: list[Batch]) -> Tensor:
    tensors = []
    for batch in batches:
        assert batch.labelled is not None
        assert batch.unlabelled is not None
        tensors += [batch.source.images, batch.labelled.images, batch.unlabelled]
    return torch.cat([tensor.flatten() for tensor in tensors])


def test_streams_and_scores_do_not_depend_on_image_storage() -> None:
    data = toy()
    targets = torch.full((len(data.pool),), UNLABELLED)
    targets[:9] = 1
    fabric = make_fabric("cpu")
    jittered = View(crop="random", size=6, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1))
    with global_seed(0, "model"):
        model = fabric.setup(EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8)))
    found = []
    everything = torch.arange(len(data.pool))
    for pixels in (
        data.pool.pixels,
        IndexablePixels(data.pool.pixels[:]),
        Subset(data.pool.pixels, everything),
    ):
        pool = Images(data.pool.keys, pixels)
        streams = Streams(data.source, pool, StreamViews(jittered, jittered, jittered), 8, 6, seed=3)
        made = flat(list(streams.epoch(2, targets, fabric)))
        predictor = Predictor(model=model, view=jittered, batch_size=7, fabric=fabric, seed=1)
        samples = predictor.score_images(pool, ("z",))
        found.append((made, samples.z))
    for made, z in found[1:]:
        assert torch.equal(made, found[0][0])
        assert torch.equal(z, found[0][1])
    assert not workers()


def test_files_decoded_batch_by_batch_give_the_same_batches(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    files = []
    for number in range(24):
        path = tmp_path / f"{number:02d}.png"
        pixels = torch.randint(0, 256, (10, 9, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(path)
        files.append((path.name, path))
    decoded = decode_images(files, 8)
    lazy = replace(decoded, pixels=LazyFileArrays(files, image_decoder(8)))
    data = toy(size=8)
    targets = torch.full((24,), UNLABELLED)
    targets[:5] = 2
    made = [
        flat(
            list(
                Streams(data.source, pool, StreamViews(), 4, 5, seed=0).epoch(0, targets, make_fabric("cpu"))
            )
        )
        for pool in (decoded, lazy)
    ]
    assert torch.equal(made[0], made[1])


def test_augmentation_belongs_to_the_position_in_the_global_batch() -> None:
    data = toy()
    targets = torch.full((len(data.pool),), UNLABELLED)
    targets[:9] = 1
    view = View(crop="random", size=6, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1))

    class Share:
        """Fake of Fabric on one of several ranks."""

        device = CPU

        def __init__(self, rank: int, world: int) -> None:
            self.global_rank, self.world_size = rank, world

        def to_device(self, tensor: Tensor) -> Tensor:
            return tensor

    def source(rank: int, world: int) -> list[Tensor]:
        streams = Streams(data.source, data.pool, StreamViews(view, view, view), 8, 3, seed=3)
        fabric = Share(rank, world)
        return [batch.source.images for batch in streams.epoch(0, targets, fabric)]  # type: ignore[arg-type]

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
