"""Which images a model is measured on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ducats.data import toy
from ducats.data.exam import Chosen, examine
from ducats.domain import Domain, Images, Shift
from ducats.errors import UserError

WITH_TEST = toy(pool=40, test=20)
TRUTH_ONLY = replace(WITH_TEST, test=None)
BARE = replace(WITH_TEST, test=None, truth=None)


def named(shift: Shift, folder: Path) -> Shift:
    """The same with files, and the target as its own test set."""
    assert shift.truth is not None
    files = tuple(folder / key for key in shift.pool.keys)
    pool = replace(shift.pool, files=files)
    test = Domain(Images(pool.keys, pool.pixels, files), shift.truth, tuple(shift.classes))
    return replace(shift, pool=pool, test=test)


@pytest.mark.parametrize("images", ["auto", "held_out", "published"])
def test_the_datas_own_test_set_comes_first(images: str) -> None:
    shift, on = examine(WITH_TEST, images, 0.2)  # type: ignore[arg-type]
    assert shift.test is WITH_TEST.test
    assert shift.pool is WITH_TEST.pool
    assert on == "held_out"


@pytest.mark.parametrize(
    ("images", "on"),
    [("auto", "unlabelled"), ("unlabelled", "unlabelled"), ("target", "target"), ("published", "target")],
)
def test_without_one_the_target_is_its_own(images: str, on: str) -> None:
    shift, said = examine(TRUTH_ONLY, images, 0.2)  # type: ignore[arg-type]
    assert shift.test is not None
    assert shift.test.images is shift.pool is TRUTH_ONLY.pool
    assert TRUTH_ONLY.truth is not None
    assert torch.equal(shift.test.labels, TRUTH_ONLY.truth)
    assert said == on


def test_a_share_of_each_class_is_held_out_and_leaves_the_pool() -> None:
    shift, on = examine(TRUTH_ONLY, "held_out", 0.25)
    whole, truth = TRUTH_ONLY.pool, TRUTH_ONLY.truth
    assert on == "held_out"
    assert shift.test is not None
    assert shift.truth is not None
    assert truth is not None
    held, left = shift.test.images.keys, shift.pool.keys
    assert not set(held) & set(left)
    assert set(held) | set(left) == set(whole.keys)
    wanted = [round(0.25 * int((truth == c).sum())) for c in range(4)]
    assert shift.test.labels.bincount(minlength=4).tolist() == wanted
    place = {key: number for number, key in enumerate(whole.keys)}
    for images, labels in ((shift.test.images, shift.test.labels), (shift.pool, shift.truth)):
        at = torch.tensor([place[key] for key in images.keys])
        assert torch.equal(images.pixels[:], whole.pixels[at])  # each image goes with its key and label
        assert torch.equal(labels, truth[at])
    again, _ = examine(TRUTH_ONLY, "held_out", 0.25)
    assert again.pool.keys == left


def test_chosen_pixels_are_taken_like_a_tensors() -> None:
    pixels = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 2, 2)
    chosen = Chosen(pixels, torch.tensor([4, 2, 0]))
    assert (len(chosen), chosen.shape, chosen.ndim, chosen.dtype) == (3, (3, 3, 2, 2), 4, torch.uint8)
    assert chosen[torch.tensor([2, 0])][:, 0, 0, 0].tolist() == [0, 4]
    assert chosen[1:][:, 0, 0, 0].tolist() == [2, 0]
    assert chosen[1].shape == (3, 2, 2)


def test_the_target_named_as_its_own_test_set(tmp_path: Path) -> None:
    shift = named(WITH_TEST, tmp_path)
    for images, said in (("auto", "target"), ("target", "target"), ("unlabelled", "unlabelled")):
        made, on = examine(shift, images, 0.2)  # type: ignore[arg-type]
        assert on == said
        assert made.test is not None
        assert made.test.images is made.pool  # decoded twice, kept once
    first = tmp_path / shift.pool.keys[0]
    first.parent.mkdir(parents=True, exist_ok=True)
    first.write_text("a file")
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    assert shift.test is not None
    other = replace(shift.test.images, files=tuple(link / key for key in shift.pool.keys))
    _, on = examine(replace(shift, test=replace(shift.test, images=other)), "auto", 0.2)
    assert on == "target"  # by whatever path
    made, on = examine(shift, "held_out", 0.5)
    assert (on, len(made.pool)) == ("held_out", 20)
    # Without a truth for the oracle, too: the test set's labels are the user's own.
    made, on = examine(replace(shift, truth=None), "held_out", 0.5)
    assert (on, len(made.pool), made.truth) == ("held_out", 20, None)


def test_nothing_known_nothing_measured() -> None:
    shift, _ = examine(BARE, "auto", 0.2)
    assert shift.test is None
    for images in ("held_out", "target", "unlabelled", "published"):
        with pytest.raises(UserError, match="needs the target's labels"):
            examine(BARE, images, 0.2)


def test_a_share_that_leaves_nothing() -> None:
    with pytest.raises(UserError, match="leaves nothing"):
        examine(TRUTH_ONLY, "held_out", 0.001)
