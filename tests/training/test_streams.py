import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED, VOID, Domain, Images, Subset
from ducats.data.toy import toy
from ducats.data.views import center_crop
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
from present import present


def batches(
    epoch: int = 0,
    seed: int = 0,
    targets: Tensor | None = None,
    pseudo_labels: Tensor | None = None,
    **more: Any,
) -> list[Batch]:
    data = toy()
    if targets is None:
        targets = torch.full((len(data.pool),), UNLABELLED)
        targets[:7] = torch.arange(7) % 4
        targets[7] = VOID
    options: dict[str, Any] = {"batch_size": 16, "views": StreamViews(source=View(flip=0.5)), **more}
    streams = Streams(data.source, data.pool, steps_per_epoch=5, seed=seed, **options)
    return list(streams.epoch(epoch, targets, make_fabric("cpu"), pseudo_labels=pseudo_labels))


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
        labels = present(batch.labelled).labels
        assert len(labels) == 7  # too few to fill a batch: one even batch
        assert int(labels.min()) >= 0  # VOID is never trained on
    shown = torch.cat([present(batch.unlabelled) for batch in made])
    for image in toy().pool.pixels[:8].float() / 255:
        assert not (shown == image).flatten(1).all(1).any()


def test_labelled_images_may_stay_in_the_unlabelled_stream() -> None:
    made = batches(unlabelled_includes_labelled=True, batch_size=79)  # all 80 images but the void one
    for batch in made:
        assert len(present(batch.labelled).labels) == 7
        keys = {tuple(image.flatten().tolist()) for image in present(batch.unlabelled)}
        expected = toy().pool.pixels[:].float() / 255
        assert keys == {tuple(image.flatten().tolist()) for i, image in enumerate(expected) if i != 7}


def test_pseudo_labelled_images_leave_the_unlabelled_stream() -> None:
    pseudo_labels = torch.full((80,), UNLABELLED)
    pseudo_labels[5:10] = 3  # two with acquired labels, one void, two unlabelled
    pixels = toy().pool.pixels[:].float() / 255
    for batch in batches(pseudo_labels=pseudo_labels, batch_size=70):  # all 80 images but 7, 1 and 2
        pseudo_labelled = present(batch.pseudo_labelled)
        assert pseudo_labelled.labels.tolist() == [3, 3]
        assert {image.sum().item() for image in pseudo_labelled.images} == {
            image.sum().item() for image in pixels[8:10]
        }
        assert {image.sum().item() for image in present(batch.unlabelled)} == {
            image.sum().item() for image in pixels[10:]
        }
        assert len(present(batch.labelled).labels) == 7


def test_stored_images_are_those_of_the_labelled_streams_before_the_view() -> None:
    views = StreamViews(source=View(crop="center", size=6), labelled=View(crop="center", size=6))
    for batch in batches(views=views, with_stored_images=True):
        for stream, stored in ((batch.source, batch.stored_source), (batch.labelled, batch.stored_labelled)):
            assert present(stored).dtype == torch.uint8
            assert present(stored).shape[-2:] == toy().pool.pixels.shape[-2:]
            cropped = center_crop(present(stored), (6, 6)).float() / 255
            assert torch.equal(cropped, present(stream).images)
    assert all(batch.stored_source is batch.stored_labelled is None for batch in batches())


def test_an_epoch_depends_only_on_seed_and_number() -> None:
    first, same, next_epoch, other_seed = (
        torch.cat([batch.source.images for batch in batches(epoch, seed)])
        for epoch, seed in ((3, 0), (3, 0), (4, 0), (3, 1))
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, next_epoch)
    assert not torch.equal(first, other_seed)


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


def labels_of(images: Tensor) -> Tensor:
    """Return label maps that follow from the images: VOID, UNLABELLED or one of three classes."""
    pixels = images if images.dtype == torch.uint8 else (images * 255).round()
    return (pixels[:, 0].short() % 5 - 2).to(torch.int8)


def segmentation_data() -> tuple[Domain, Images]:
    """Return source and pool; the first pool image is unlabelled."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (11, 3, 4, 6), dtype=torch.uint8, generator=generator)
    pixels[6] = 1
    source = Domain(
        Images(tuple(f"s{n}" for n in range(6)), pixels[:6]), labels_of(pixels[:6]), ("a", "b", "c")
    )
    return source, Images(tuple(f"t{n}" for n in range(5)), pixels[6:])


def test_class_presence_from_maps_and_from_labels() -> None:
    source, _ = segmentation_data()
    maps = source.labels[:]
    expected = torch.stack([torch.stack([(m == c).any() for c in range(3)]) for m in maps])
    assert torch.equal(class_presence(source), expected)
    images = replace(source, labels=torch.tensor([0, 2, 1, 1, 0, 2]))
    assert class_presence(images).int().argmax(1).tolist() == [0, 2, 1, 1, 0, 2]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_label_maps_match_their_images(is_lazy: bool) -> None:
    source, pool = segmentation_data()
    targets: Any = labels_of(pool.pixels[:])
    if is_lazy:
        targets = Subset(targets, torch.arange(5))
    views = StreamViews(source=View(flip=0.5), unlabelled=View(crop="random", size=(3, 4), flip=0.5))
    has_labels = set()
    for batch in Streams(source, pool, views, 2, 9, seed=0).epoch(0, targets, make_fabric("cpu")):
        assert (batch.labelled, batch.unlabelled) == (None, None)
        target = present(batch.target)
        assert (target.images.shape, batch.source.labels.shape) == ((2, 3, 3, 4), (2, 4, 6))
        for part in (batch.source, target):
            assert part.labels.dtype == torch.int8
            assert torch.equal(part.labels, labels_of(part.images))
        has_labels |= {bool((labels >= 0).any()) for labels in target.labels}
    assert has_labels == {True, False}  # images without a label are shown, too


def test_images_labelled_as_a_whole_are_a_separate_stream() -> None:
    source, pool = segmentation_data()
    targets = torch.full((5, 4, 6), -1, dtype=torch.int8)
    targets[[1, 3]] = 2
    streams = Streams(source, pool, StreamViews(), batch_size=2, steps_per_epoch=4, seed=0)
    for batch in streams.epoch(0, targets, make_fabric("cpu"), whole_images=torch.tensor([1, 3])):
        assert (present(batch.labelled).labels == 2).all()
        assert (present(batch.target).labels == -1).all()
    every_image = streams.epoch(1, targets, make_fabric("cpu"), whole_images=torch.arange(5))
    assert all(batch.target is None for batch in every_image)


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
    targets = torch.full((5, 4, 6), -1, dtype=torch.int8)

    def has_labels(**options: Any) -> list[bool]:
        return [b.has_target_labels for b in streams.epoch(0, targets, make_fabric("cpu"), **options)]

    assert has_labels() == [True]
    assert has_labels(has_labels=False) == [False]
    # If images are labelled as a whole, the other images have no labels.
    assert has_labels(whole_images=torch.tensor([1])) == [False]
