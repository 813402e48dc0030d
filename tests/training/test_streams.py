import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from ducats.data.domain import UNLABELLED, VOID, Domain, Images
from ducats.data.evaluation_split import Subset
from ducats.data.toy import toy
from ducats.objectives import Batch
from ducats.settings import StreamViews, View
from ducats.training.distributed import make_fabric
from ducats.training.streams import (
    Streams,
    class_presence,
    even_batches,
    full_batches,
    pad_batch,
    rare_class_order,
    short_last_batch,
    shuffled_batches,
    steps_in_epoch,
)
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator


def batches(epoch: int = 0, seed: int = 0, steps: int = 5, **more: object) -> list[Batch]:
    data = toy()
    targets = torch.full((len(data.pool),), UNLABELLED)
    targets[:7] = torch.arange(7) % 4
    targets[7] = VOID
    options: dict[str, Any] = {"batch_size": 16, "views": StreamViews(source=View(flip=0.5)), **more}
    targets = options.pop("targets", targets)
    streams = Streams(data.source, data.pool, steps_per_epoch=steps, seed=seed, **options)
    return list(streams.epoch(epoch, targets, make_fabric("cpu")))


def test_each_pass_covers_all_items_and_is_reshuffled() -> None:
    seen = list(shuffled_batches(torch.arange(96), 32, 6, make_generator(0, "x"), full_batches))
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(96))
    assert not torch.equal(first, second)


def test_batch_splitting() -> None:
    items = torch.arange(65)
    assert [len(b) for b in full_batches(items, 32)] == [32, 32]
    assert [len(b) for b in full_batches(items[:5], 32)] == [5]
    assert [len(b) for b in short_last_batch(items, 32)] == [32, 32, 1]
    for count, split in itertools.product((1, 31, 32, 33, 65, 200), (even_batches, short_last_batch)):
        split_batches = split(torch.arange(count), 32)
        assert torch.cat(list(split_batches)).tolist() == list(range(count))
        assert max(map(len, split_batches)) <= 32


def test_a_short_batch_is_padded_for_every_process() -> None:
    for count, world in itertools.product(range(1, 40), (1, 2, 3, 4)):
        filled = pad_batch(torch.arange(count), world)
        assert len(filled) % world == 0
        assert len(filled) // world >= 2
        assert len(filled) < count + 2 * world
        assert set(filled.tolist()) == set(range(count))


def test_published_steps_per_epoch() -> None:
    assert steps_in_epoch(152397, 55388, 32) == 4762  # VisDA
    assert steps_in_epoch(5, 7, 32) == 1


def test_labelled_and_void_images_leave_the_unlabelled_stream() -> None:
    made = batches()
    for batch in made:
        assert batch.labelled is not None
        assert batch.unlabelled is not None
        assert len(batch.labelled.labels) == 7  # too few to fill a batch: one even batch
        assert int(batch.labelled.labels.min()) >= 0  # VOID is never trained on
    pool = toy().pool.pixels[:].float() / 255
    shown = torch.cat([b.unlabelled for b in made if b.unlabelled is not None])
    for image in pool[:8]:
        assert not (shown == image).flatten(1).all(1).any()


def test_an_epoch_depends_only_on_seed_and_number() -> None:
    def flat(made: list[Batch]) -> torch.Tensor:
        return torch.cat([b.source.images.flatten() for b in made])

    assert torch.equal(flat(batches(3)), flat(batches(3)))
    assert not torch.equal(flat(batches(3)), flat(batches(4)))
    assert not torch.equal(flat(batches(3)), flat(batches(3, seed=1)))


def test_no_labels_yet_and_none_left() -> None:
    none = batches(targets=torch.full((80,), UNLABELLED))
    assert all(b.labelled is None and b.unlabelled is not None for b in none)
    every = batches(targets=torch.zeros(80, dtype=torch.long))
    assert all(b.labelled is not None and b.unlabelled is None for b in every)


def test_labels_match_their_images() -> None:
    data = toy()
    known = {
        image.numpy().tobytes(): int(label)
        for image, label in zip(data.source.images.pixels[:], data.source.labels[:], strict=True)
    }
    for batch in batches(views=StreamViews()):
        for image, label in zip(batch.source.images, batch.source.labels, strict=True):
            assert known[(image * 255).round().to(torch.uint8).numpy().tobytes()] == int(label)


def test_batch_size_must_suit_the_processes() -> None:
    with pytest.raises(UserError, match="multiple of 1 processes, with at least two"):
        batches(batch_size=1)


# ---- rare classes, and maps


def test_rare_classes_are_oversampled() -> None:
    presence = torch.zeros(200, 3, dtype=torch.bool)
    presence[:, 0] = True
    presence[:20, 1] = True
    presence[7, 2] = True
    order = rare_class_order(presence, 3000, make_generator(0, "order"))
    shares = presence[order].double().mean(0)
    # Classes are drawn with probability proportional to 1 / ln(1.01 + f), f being their share of all classes
    # seen. In the long run the shares reach a fixed point, which is computed here by iteration.
    seen = torch.ones(3, dtype=torch.double)
    for _ in range(200):
        chance = 1 / torch.log(1.01 + seen / seen.sum())
        chance /= chance.sum()
        # Classes seen with a drawn class: class 0 always; class 1 in a tenth of class 0's images; class 2 ...
        with_class = torch.stack([presence[presence[:, c]].double().mean(0) for c in range(3)])
        seen = chance @ with_class
    assert torch.allclose(shares, seen, atol=0.03)
    assert shares[2] > 0.2  # one image out of two hundred


def test_rare_class_sampling_is_deterministic_and_even_within_a_class() -> None:
    presence = torch.eye(4, dtype=torch.bool).repeat(5, 1)
    order = rare_class_order(presence, 400, make_generator(1, "order"))
    assert torch.equal(order, rare_class_order(presence, 400, make_generator(1, "order")))
    assert not torch.equal(order, rare_class_order(presence, 400, make_generator(2, "order")))
    counts = torch.bincount(order, minlength=20)
    # The five images of a class are taken in turn.
    assert all(int(counts[c::4].max() - counts[c::4].min()) <= 1 for c in range(4))


def test_a_class_without_images_is_never_drawn() -> None:
    presence = torch.tensor([[True, False], [True, False]])
    assert set(rare_class_order(presence, 10, make_generator(0)).tolist()) == {0, 1}
    with pytest.raises(UserError, match="label maps"):
        rare_class_order(torch.zeros(3, 2, dtype=torch.bool), 4, make_generator(0))


def segmentation_data() -> tuple[Domain, Images]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (6, 3, 4, 6), dtype=torch.uint8, generator=generator)
    maps = torch.randint(-2, 3, (6, 4, 6), generator=generator).to(torch.int8)
    source = Domain(Images(tuple(f"s{n}" for n in range(6)), pixels), maps, ("a", "b", "c"))
    return source, Images(tuple(f"t{n}" for n in range(5)), pixels[:5].flip(0))


def test_class_presence_from_maps_and_from_labels() -> None:
    source, _ = segmentation_data()
    maps = source.labels[:]
    expected = torch.stack([torch.stack([(m == c).any() for c in range(3)]) for m in maps])
    assert torch.equal(class_presence(source), expected)
    images = replace(source, labels=torch.tensor([0, 2, 1, 1, 0, 2]))
    assert class_presence(images).int().argmax(1).tolist() == [0, 2, 1, 1, 0, 2]


def test_label_maps_match_their_images() -> None:
    source, pool = segmentation_data()
    targets = (pool.pixels[:][:, 0] % 5).to(torch.int8) - 2
    views = StreamViews(source=View(flip=0.5), unlabelled=View(crop="random", size=(3, 4)))
    streams = Streams(source, pool, views, batch_size=2, steps_per_epoch=7, seed=0)
    for batch in streams.epoch(0, targets, make_fabric("cpu")):
        assert batch.labelled is None
        assert batch.unlabelled is None
        assert batch.target is not None
        assert batch.target.images.shape == (2, 3, 3, 4)
        shown = (batch.target.images[:, 0] * 255).round()
        assert torch.equal(batch.target.labels, (shown % 5 - 2).to(torch.int8))
        assert batch.source.labels.shape == (2, 4, 6)


def test_images_labelled_as_a_whole_are_a_separate_stream() -> None:
    source, pool = segmentation_data()
    targets = torch.full((5, 4, 6), -1, dtype=torch.int8)
    targets[[1, 3]] = 2
    streams = Streams(source, pool, StreamViews(), batch_size=2, steps_per_epoch=4, seed=0)
    for batch in streams.epoch(0, targets, make_fabric("cpu"), whole_images=torch.tensor([1, 3])):
        assert batch.labelled is not None
        assert batch.target is not None
        assert (batch.labelled.labels == 2).all()
        assert (batch.target.labels == -1).all()
    everything = torch.arange(5)
    assert all(
        b.target is None for b in streams.epoch(1, targets, make_fabric("cpu"), whole_images=everything)
    )


def test_void_and_unlabelled_reach_the_objective_unchanged() -> None:
    source, pool = segmentation_data()
    targets = torch.randint(VOID, 3, (5, 4, 6), generator=make_generator(0, "targets")).to(torch.int8)
    streams = Streams(source, pool, StreamViews(), batch_size=2, steps_per_epoch=9, seed=0)
    maps = {image.numpy().tobytes(): n for n, image in enumerate(pool.pixels[:])}
    sources = {image.numpy().tobytes(): n for n, image in enumerate(source.images.pixels[:])}
    seen: set[int] = set()
    for batch in streams.epoch(0, targets, make_fabric("cpu")):
        assert batch.target is not None
        for part, known, where in ((batch.source, source.labels, sources), (batch.target, targets, maps)):
            assert part.labels.dtype == torch.int8
            for image, labels in zip(part.images, part.labels, strict=True):
                number = where[(image * 255).round().to(torch.uint8).numpy().tobytes()]
                assert torch.equal(labels, known[number])
                seen |= {number} if part is batch.target else set()
    assert seen == set(range(5))  # including images without a label


@pytest.mark.parametrize("kind", ["held", "made"])
def test_lazily_computed_maps_are_the_same(kind: str) -> None:
    source, pool = segmentation_data()
    targets = torch.randint(VOID, 3, (5, 4, 6), generator=make_generator(0, "targets")).to(torch.int8)
    views = StreamViews(source=View(flip=0.5), unlabelled=View(crop="random", size=(3, 4), flip=0.5))

    def epoch(labels: Any) -> list[Batch]:
        return list(Streams(source, pool, views, 2, 6, seed=0).epoch(1, labels, make_fabric("cpu")))

    chosen = Subset(targets, torch.arange(5))
    for one, two in zip(epoch(targets), epoch(chosen if kind == "made" else targets.clone()), strict=True):
        assert one.target is not None
        assert two.target is not None
        assert torch.equal(one.target.labels, two.target.labels)
        assert torch.equal(one.target.images, two.target.images)


def test_rare_source_classes_are_oversampled_only_if_enabled() -> None:
    source, pool = segmentation_data()
    maps = torch.zeros_like(source.labels[:])
    maps[2] = 1  # the only image with that class
    rare = replace(source, labels=maps)
    targets = torch.full((5, 4, 6), UNLABELLED, dtype=torch.int8)
    shares = []
    for presence in (None, class_presence(rare)):
        streams = Streams(rare, pool, StreamViews(), 2, 200, seed=0, class_presence=presence)
        shown = torch.cat(
            [b.source.labels.flatten(1)[:, 0] for b in streams.epoch(0, targets, make_fabric("cpu"))]
        )
        shares.append(float((shown == 1).double().mean()))
    assert shares[0] == pytest.approx(1 / 6, abs=0.01)
    assert shares[1] == pytest.approx(1 / 2, abs=0.02)


def test_a_batch_marks_whether_pixels_may_have_labels() -> None:
    source, pool = segmentation_data()
    streams = Streams(source, pool, StreamViews(), batch_size=2, steps_per_epoch=1, seed=0)
    targets, fabric = torch.full((5, 4, 6), -1, dtype=torch.int8), make_fabric("cpu")
    assert [b.has_target_labels for b in streams.epoch(0, targets, fabric)] == [True]
    assert [b.has_target_labels for b in streams.epoch(0, targets, fabric, has_labels=False)] == [False]
    # If images are labelled as a whole, the other images have no labels.
    assert [
        b.has_target_labels for b in streams.epoch(0, targets, fabric, whole_images=torch.tensor([1]))
    ] == [False]
