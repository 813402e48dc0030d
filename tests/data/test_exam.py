"""Evaluation split."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ducats.data import toy
from ducats.data.exam import Chosen, examine
from ducats.data.maps import map_folders
from ducats.data.streets import streets
from ducats.domain import VOID, Domain, Images, Shift, original_map
from ducats.errors import UserError

WITH_TEST = toy(pool=40, test=20)
TRUTH_ONLY = replace(WITH_TEST, test=None)
BARE = replace(WITH_TEST, test=None, truth=None)


def named(shift: Shift, folder: Path) -> Shift:
    """Return the same data with files, and with the target as test set."""
    assert shift.truth is not None
    files = tuple(folder / key for key in shift.pool.keys)
    pool = replace(shift.pool, files=files)
    test = Domain(Images(pool.keys, pool.pixels, files), shift.truth, tuple(shift.classes))
    return replace(shift, pool=pool, test=test)


@pytest.mark.parametrize("images", ["auto", "held_out", "published"])
def test_existing_test_set_is_used_first(images: str) -> None:
    shift, on = examine(WITH_TEST, images, 0.2)  # type: ignore[arg-type]
    assert shift.test is WITH_TEST.test
    assert shift.pool is WITH_TEST.pool
    assert on == "held_out"


@pytest.mark.parametrize(
    ("images", "on"),
    [("auto", "unlabelled"), ("unlabelled", "unlabelled"), ("target", "target"), ("published", "target")],
)
def test_target_is_the_test_set_if_there_is_none(images: str, on: str) -> None:
    shift, said = examine(TRUTH_ONLY, images, 0.2)  # type: ignore[arg-type]
    assert shift.test is not None
    assert shift.test.images is shift.pool is TRUTH_ONLY.pool
    assert TRUTH_ONLY.truth is not None
    assert torch.equal(shift.test.labels[:], TRUTH_ONLY.truth[:])
    assert said == on


def test_held_out_images_leave_the_pool() -> None:
    shift, on = examine(TRUTH_ONLY, "held_out", 0.25)
    whole, truth = TRUTH_ONLY.pool, TRUTH_ONLY.truth
    assert on == "held_out"
    assert shift.test is not None
    assert shift.truth is not None
    assert truth is not None
    held, left = shift.test.images.keys, shift.pool.keys
    assert not set(held) & set(left)
    assert set(held) | set(left) == set(whole.keys)
    wanted = [round(0.25 * int((truth[:] == c).sum())) for c in range(4)]
    assert shift.test.labels[:].bincount(minlength=4).tolist() == wanted
    place = {key: number for number, key in enumerate(whole.keys)}
    for images, labels in ((shift.test.images, shift.test.labels), (shift.pool, shift.truth)):
        at = torch.tensor([place[key] for key in images.keys])
        assert torch.equal(images.pixels[:], whole.pixels[at])  # images keep their key and label
        assert torch.equal(labels[:], truth[at])
    again, _ = examine(TRUTH_ONLY, "held_out", 0.25)
    assert again.pool.keys == left


def test_subset_is_indexed_like_a_tensor() -> None:
    pixels = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 2, 2)
    chosen = Chosen(pixels, torch.tensor([4, 2, 0]))
    assert (len(chosen), chosen.shape, chosen.ndim, chosen.dtype) == (3, (3, 3, 2, 2), 4, torch.uint8)
    assert chosen[torch.tensor([2, 0])][:, 0, 0, 0].tolist() == [0, 4]
    assert chosen[1:][:, 0, 0, 0].tolist() == [2, 0]
    assert chosen[1].shape == (3, 2, 2)


def test_target_given_as_test_set(tmp_path: Path) -> None:
    shift = named(WITH_TEST, tmp_path)
    for images, said in (("auto", "target"), ("target", "target"), ("unlabelled", "unlabelled")):
        made, on = examine(shift, images, 0.2)  # type: ignore[arg-type]
        assert on == said
        assert made.test is not None
        assert made.test.images is made.pool  # decoded twice, held once
    first = tmp_path / shift.pool.keys[0]
    first.parent.mkdir(parents=True, exist_ok=True)
    first.write_text("a file")
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    assert shift.test is not None
    other = replace(shift.test.images, files=tuple(link / key for key in shift.pool.keys))
    _, on = examine(replace(shift, test=replace(shift.test, images=other)), "auto", 0.2)
    assert on == "target"  # also through a link
    made, on = examine(shift, "held_out", 0.5)
    assert (on, len(made.pool)) == ("held_out", 20)
    # Also without ground truth: the labels of the test set are used.
    made, on = examine(replace(shift, truth=None), "held_out", 0.5)
    assert (on, len(made.pool), made.truth) == ("held_out", 20, None)


def test_without_labels_there_is_no_test_set() -> None:
    shift, _ = examine(BARE, "auto", 0.2)
    assert shift.test is None
    for images in ("held_out", "target", "unlabelled", "published"):
        with pytest.raises(UserError, match="needs the target's labels"):
            examine(BARE, images, 0.2)


def test_rejects_a_share_that_leaves_nothing() -> None:
    with pytest.raises(UserError, match="leaves nothing"):
        examine(TRUTH_ONLY, "held_out", 0.001)


# ---- label maps

MAPS = streets(source=2, pool=10, test=4, height=16, width=32)
MAPS_ONLY = replace(MAPS, test=None)


class Sized:
    """Label maps with originals of twice the size."""

    ndim, dtype = 3, torch.int8

    def __init__(self, maps: Tensor) -> None:
        self._maps, self.shape = maps, maps.shape

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, index: Any) -> Tensor:
        return self._maps[index]

    def original(self, index: int) -> Tensor:
        return self._maps[index].repeat_interleave(2, 0).repeat_interleave(2, 1)


def test_existing_test_set_with_label_maps_is_used_first() -> None:
    shift, on = examine(MAPS, "auto", 0.2)
    assert (shift, on) == (MAPS, "held_out")


@pytest.mark.parametrize(
    ("images", "on"), [("auto", "unlabelled"), ("unlabelled", "unlabelled"), ("target", "target")]
)
def test_target_label_maps_are_the_test_set_if_there_is_none(images: str, on: str) -> None:
    shift, said = examine(MAPS_ONLY, images, 0.2)  # type: ignore[arg-type]
    assert said == on
    assert shift.test is not None
    assert shift.test.images is shift.pool is MAPS_ONLY.pool
    assert shift.test.labels is MAPS_ONLY.truth
    assert shift.test.of_pixels


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_images_with_label_maps_are_held_out(share: float) -> None:
    assert MAPS.truth is not None
    assert MAPS.pool.void is not None
    sized = Sized(MAPS.truth[:])
    whole = replace(MAPS_ONLY.pool, sizes=torch.arange(20).view(10, 2))
    shift, on = examine(replace(MAPS_ONLY, truth=sized, pool=whole), "held_out", share)
    assert on == "held_out"
    assert shift.test is not None
    assert shift.truth is not None
    assert (len(shift.test), len(shift.pool)) == (round(10 * share), 10 - round(10 * share))
    assert not set(shift.test.images.keys) & set(shift.pool.keys)
    assert {*shift.test.images.keys, *shift.pool.keys} == set(whole.keys)
    place = {key: number for number, key in enumerate(whole.keys)}
    for images, labels in ((shift.test.images, shift.test.labels), (shift.pool, shift.truth)):
        at = torch.tensor([place[key] for key in images.keys])
        assert torch.equal(images.pixels[:], whole.pixels[at])
        assert torch.equal(labels[:], sized[at])
        assert images.sizes is not None
        assert images.void is not None
        assert whole.sizes is not None
        assert torch.equal(images.sizes, whole.sizes[at])
        assert torch.equal(images.void[:], MAPS.pool.void[at])
        assert (labels.ndim, labels.dtype, tuple(labels.shape)) == (3, torch.int8, (len(at), 16, 32))
        for number in range(len(at)):  # one by one, also at original size
            assert torch.equal(labels[number], sized[int(at[number])])
            assert torch.equal(original_map(labels, number), sized.original(int(at[number])))
            assert torch.equal(original_map(images.void, number), MAPS.pool.void[int(at[number])])
    again, _ = examine(replace(MAPS_ONLY, truth=sized, pool=whole), "held_out", share)
    assert again.pool.keys == shift.pool.keys


def test_rejects_a_share_of_label_maps_that_leaves_nothing() -> None:
    with pytest.raises(UserError, match="leaves nothing"):
        examine(MAPS_ONLY, "held_out", 0.01)


def test_label_map_files_are_split(tmp_path: Path) -> None:
    luck = np.random.default_rng(0)
    for part, count in (("source", 1), ("target", 4)):
        for number in range(count):
            size = (6 + number, 10)
            for kind, values in (
                ("images", luck.integers(0, 256, (*size, 3))),
                ("labels", luck.choice([0, 1, 255], size)),
            ):
                path = tmp_path / part / kind / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(values.astype(np.uint8)).save(path)
    (tmp_path / "classes.txt").write_text("0 a\n1 b\n255 void\n")
    shift = map_folders(
        root=tmp_path, source="source", target="target", classes="classes.txt", truth=True, size=(4, 5)
    )
    made, _ = examine(shift, "held_out", 0.5)
    assert made.test is not None
    assert shift.truth is not None
    assert made.pool.void is not None
    for key, number in [(key, number) for number, key in enumerate(made.test.images.keys)]:
        before = shift.pool.keys.index(key)
        assert torch.equal(made.test.labels[number], shift.truth[before])
        assert torch.equal(original_map(made.test.labels, number), original_map(shift.truth, before))
    for number, key in enumerate(made.pool.keys):
        before = shift.pool.keys.index(key)
        assert torch.equal(
            original_map(made.pool.void, number) != 0, original_map(shift.truth, before) == VOID
        )
        assert torch.equal(made.pool.void[number] != 0, shift.truth[before] == VOID)
