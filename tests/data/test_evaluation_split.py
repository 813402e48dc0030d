"""Evaluation split."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ducats.data.domain import AdaptationData, Domain, Images, Subset, UnreadableFile, original_map
from ducats.data.evaluation_split import attach_test_set, hold_out_source
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.utils.errors import UserError

WITH_TEST: Any = toy(n_pool=40, n_test=20)
WITH_GROUND_TRUTH = replace(WITH_TEST, test=None)
WITHOUT_LABELS = replace(WITH_TEST, test=None, ground_truth=None)
WITH_LABEL_MAPS: Any = streets(n_source=2, n_pool=10, n_test=4, height=16, width=32)
LABEL_MAPS_WITHOUT_TEST = replace(WITH_LABEL_MAPS, test=None)


def attach(data: AdaptationData, split: Any, test_fraction: float) -> tuple[Any, str]:
    return attach_test_set(data, split, test_fraction)


def with_target_as_test(data: AdaptationData, folder: Path) -> AdaptationData:
    """Return the same data with files, and with the target as test set."""
    assert data.ground_truth is not None
    files = tuple(folder / key for key in data.pool.keys)
    pool = replace(data.pool, files=files)
    test = Domain(Images(pool.keys, pool.pixels, files), data.ground_truth, tuple(data.classes))
    return replace(data, pool=pool, test=test)


@pytest.mark.parametrize("split", ["auto", "held_out", "published"])
@pytest.mark.parametrize("data", [WITH_TEST, WITH_LABEL_MAPS], ids=["labels", "maps"])
def test_existing_test_set_is_used_first(data: AdaptationData, split: Any) -> None:
    assert attach(data, split, 0.2) == (data, "held_out")


@pytest.mark.parametrize(
    ("split", "expected"),
    [("auto", "unlabelled"), ("unlabelled", "unlabelled"), ("target", "target"), ("published", "target")],
)
@pytest.mark.parametrize("data", [WITH_GROUND_TRUTH, LABEL_MAPS_WITHOUT_TEST], ids=["labels", "maps"])
def test_target_is_the_test_set_if_there_is_none(data: AdaptationData, split: Any, expected: str) -> None:
    prepared, evaluated_on = attach(data, split, 0.2)
    assert prepared.test.images is prepared.pool is data.pool
    assert prepared.test.labels is data.ground_truth
    assert evaluated_on == expected


def check_held_out(given: AdaptationData, fraction: float) -> AdaptationData:
    """Hold out a fraction, twice; every image keeps its key, pixels and label in exactly one of the sets."""
    data, evaluated_on = attach(given, "held_out", fraction)
    assert evaluated_on == "held_out"
    assert sorted([*data.test.images.keys, *data.pool.keys]) == sorted(given.pool.keys)
    labels: Any = given.ground_truth
    for images, found in ((data.test.images, data.test.labels), (data.pool, data.ground_truth)):
        index = torch.tensor([given.pool.keys.index(key) for key in images.keys])
        assert torch.equal(images.pixels[:], given.pool.pixels[index])
        assert torch.equal(found[:], labels[index])
    again, _ = attach(given, "held_out", fraction)
    assert again.pool.keys == data.pool.keys
    return data  # type: ignore[no-any-return]


def test_held_out_images_leave_the_pool() -> None:
    data: Any = check_held_out(WITH_GROUND_TRUTH, 0.25)
    per_class = WITH_GROUND_TRUTH.ground_truth[:].bincount(minlength=4).tolist()
    expected = [round(0.25 * count) for count in per_class]
    assert data.test.labels[:].bincount(minlength=4).tolist() == expected


def test_subset_is_indexed_like_a_tensor() -> None:
    pixels = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 2, 2)
    chosen = Subset(pixels, torch.tensor([4, 2, 0]))
    assert (len(chosen), chosen.shape, chosen.ndim, chosen.dtype) == (3, (3, 3, 2, 2), 4, torch.uint8)
    assert chosen[torch.tensor([2, 0])][:, 0, 0, 0].tolist() == [0, 4]
    assert chosen[1:][:, 0, 0, 0].tolist() == [2, 0]
    assert chosen[1].shape == (3, 2, 2)


def test_target_given_as_test_set(tmp_path: Path) -> None:
    data: Any = with_target_as_test(WITH_TEST, tmp_path)
    for split, expected in (("auto", "target"), ("target", "target"), ("unlabelled", "unlabelled")):
        prepared, evaluated_on = attach(data, split, 0.2)
        assert evaluated_on == expected
        assert prepared.test.images is prepared.pool  # decoded twice, kept once
    first = tmp_path / data.pool.keys[0]
    first.parent.mkdir(parents=True, exist_ok=True)
    first.write_text("a file")
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    other = replace(data.test.images, files=tuple(link / key for key in data.pool.keys))
    _, evaluated_on = attach(replace(data, test=replace(data.test, images=other)), "auto", 0.2)
    assert evaluated_on == "target"  # also through a link
    prepared, evaluated_on = attach(data, "held_out", 0.5)
    assert (evaluated_on, len(prepared.pool)) == ("held_out", 20)
    # Also without ground truth: the labels of the test set are used.
    prepared, evaluated_on = attach(replace(data, ground_truth=None), "held_out", 0.5)
    assert (evaluated_on, len(prepared.pool), prepared.ground_truth) == ("held_out", 20, None)


def test_without_labels_there_is_no_test_set() -> None:
    data, _ = attach(WITHOUT_LABELS, "auto", 0.2)
    assert data.test is None
    for split in ("held_out", "target", "unlabelled", "published"):
        with pytest.raises(UserError, match="needs the target's labels"):
            attach(WITHOUT_LABELS, split, 0.2)


@pytest.mark.parametrize("data", [WITH_GROUND_TRUTH, LABEL_MAPS_WITHOUT_TEST], ids=["labels", "maps"])
def test_rejects_a_fraction_that_leaves_nothing(data: AdaptationData) -> None:
    with pytest.raises(UserError, match="leaves nothing"):
        attach(data, "held_out", 0.001)


# ---- label maps


class ResizableLabelMaps:
    """Label maps, or masks, with originals of twice the size."""

    ndim = 3

    def __init__(self, maps: Tensor) -> None:
        self._maps, self.shape, self.dtype = maps, maps.shape, maps.dtype

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, index: Any) -> Tensor:
        return self._maps[index]

    def original(self, index: int) -> Tensor:
        return self._maps[index].repeat_interleave(2, 0).repeat_interleave(2, 1)


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_images_with_label_maps_are_held_out(fraction: float) -> None:
    label_maps = ResizableLabelMaps(WITH_LABEL_MAPS.ground_truth[:])
    masks = ResizableLabelMaps(WITH_LABEL_MAPS.pool.void_masks[:])
    sizes = torch.arange(20).view(10, 2)
    pool = replace(LABEL_MAPS_WITHOUT_TEST.pool, original_sizes=sizes, void_masks=masks)
    given = replace(LABEL_MAPS_WITHOUT_TEST, ground_truth=label_maps, pool=pool)
    data: Any = check_held_out(given, fraction)
    assert len(data.test) == round(10 * fraction)
    for images, labels in ((data.test.images, data.test.labels), (data.pool, data.ground_truth)):
        index = [pool.keys.index(key) for key in images.keys]
        assert torch.equal(images.original_sizes, sizes[index])
        assert torch.equal(images.void_masks[:], masks[index])
        assert (labels.ndim, labels.dtype, tuple(labels.shape)) == (3, torch.int8, (len(index), 16, 32))
        for number, before in enumerate(index):  # one by one, also at original size
            assert torch.equal(labels[number], label_maps[before])
            assert torch.equal(original_map(labels, number), label_maps.original(before))
            assert torch.equal(original_map(images.void_masks, number), masks.original(before))


def test_parts_keep_the_range_but_only_the_larger_one_lists_skipped_files() -> None:
    skipped = (UnreadableFile(Path("damaged.png"), "empty file"),)

    def skip(images: Images) -> Images:
        return replace(images, unreadable=skipped, value_range=(0, 4095))

    source = replace(WITH_TEST.source, images=skip(WITH_TEST.source.images))
    data = replace(WITH_GROUND_TRUTH, source=source, pool=skip(WITH_TEST.pool))
    split, _ = attach(data, "held_out", 0.25)
    remaining, held_out = hold_out_source(data, 0.25)
    assert held_out is not None
    for larger, smaller in (
        (split.pool, split.test.images),
        (remaining.source.images, held_out.images),
    ):
        assert larger.value_range == smaller.value_range == (0, 4095)
        assert (larger.unreadable, smaller.unreadable) == (skipped, ())
