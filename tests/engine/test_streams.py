import itertools
from typing import Any

import pytest
import torch

from ducats.data import toy
from ducats.data.views import View
from ducats.domain import UNLABELLED, VOID
from ducats.engine.processes import make_fabric
from ducats.engine.streams import (
    Streams,
    Views,
    even_batches,
    fill,
    passes,
    short_last,
    steps_in_epoch,
    whole_batches,
)
from ducats.errors import UserError
from ducats.objectives import Batch
from ducats.randomness import fork


def batches(epoch: int = 0, seed: int = 0, steps: int = 5, **more: object) -> list[Batch]:
    shift = toy()
    targets = torch.full((len(shift.pool),), UNLABELLED)
    targets[:7] = torch.arange(7) % 4
    targets[7] = VOID
    options: dict[str, Any] = {"batch_size": 16, "views": Views(source=View(flip=0.5)), **more}
    targets = options.pop("targets", targets)
    streams = Streams(shift.source, shift.pool, steps=steps, seed=seed, **options)
    return list(streams.epoch(epoch, targets, make_fabric("cpu")))


def test_a_pass_sees_everything_once_and_then_shuffles_anew() -> None:
    seen = list(passes(torch.arange(96), 32, 6, fork(0, "x"), whole_batches))
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(96))
    assert not torch.equal(first, second)


def test_cuts() -> None:
    items = torch.arange(65)
    assert [len(b) for b in whole_batches(items, 32)] == [32, 32]
    assert [len(b) for b in whole_batches(items[:5], 32)] == [5]
    assert [len(b) for b in short_last(items, 32)] == [32, 32, 1]
    for count, cut in itertools.product((1, 31, 32, 33, 65, 200), (even_batches, short_last)):
        cuts = cut(torch.arange(count), 32)
        assert torch.cat(list(cuts)).tolist() == list(range(count))
        assert max(map(len, cuts)) <= 32


def test_a_short_batch_is_filled_for_every_process() -> None:
    for count, world in itertools.product(range(1, 40), (1, 2, 3, 4)):
        filled = fill(torch.arange(count), world)
        assert len(filled) % world == 0
        assert len(filled) // world >= 2
        assert len(filled) < count + 2 * world
        assert set(filled.tolist()) == set(range(count))


def test_published_steps_of_an_epoch() -> None:
    assert steps_in_epoch(152397, 55388, 32) == 4762  # VisDA
    assert steps_in_epoch(5, 7, 32) == 1


def test_bought_and_void_images_leave_the_unlabelled_stream() -> None:
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


def test_an_epoch_follows_from_seed_and_number_alone() -> None:
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


def test_labels_go_with_their_images() -> None:
    shift = toy()
    known = {
        image.numpy().tobytes(): int(label)
        for image, label in zip(shift.source.images.pixels[:], shift.source.labels, strict=True)
    }
    for batch in batches(views=Views()):
        for image, label in zip(batch.source.images, batch.source.labels, strict=True):
            assert known[(image * 255).round().to(torch.uint8).numpy().tobytes()] == int(label)


def test_a_batch_that_the_processes_cannot_share() -> None:
    with pytest.raises(UserError, match="multiple of 1 processes, two images each"):
        batches(batch_size=1)
