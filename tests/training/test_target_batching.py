"""Labelled and unlabelled target images as one batch."""

import pytest
import torch
from torch import Tensor, nn

from ducats.config import load_config
from ducats.models import EvidentialModel
from ducats.models.small_cnn import small_cnn
from ducats.objectives import Batch, CachedForward, LabelledImages, duc
from ducats.training.step import TARGET_BATCHING
from ducats.utils.errors import UserError
from present import present


def images(count: int, seed: int) -> Tensor:
    return torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


def some(count: int, seed: int) -> LabelledImages | None:
    return LabelledImages(images(count, seed), torch.arange(count) % 4) if count else None


def batch(n_labelled: int = 3, n_pseudo_labelled: int = 2) -> Batch:
    source = LabelledImages(images(8, 0), torch.arange(8) % 4)
    return Batch(source, some(n_labelled, 1), images(8, 2), pseudo_labelled=some(n_pseudo_labelled, 3))


def network() -> EvidentialModel:
    torch.manual_seed(0)
    return EvidentialModel(small_cnn(classes=4, channels=1)).train()


def test_the_target_is_one_batch_and_the_source_another() -> None:
    given, batch_sizes = batch(), list[int]()

    class Counting(nn.Module):
        def forward(self, stream_images: Tensor) -> object:
            batch_sizes.append(len(stream_images))
            return network()(stream_images)

    for join, sizes in (
        (TARGET_BATCHING["joint"], [8, 8 + 3 + 2]),
        (TARGET_BATCHING["separate"], [8, 8, 3, 2]),
    ):
        batch_sizes.clear()
        duc(CachedForward(Counting(), join(given)), given)
        assert batch_sizes == sizes


def test_each_stream_gets_the_outputs_of_its_own_images() -> None:
    given = batch()
    labelled, pseudo_labelled = present(given.labelled).images, present(given.pseudo_labelled).images
    streams = [present(given.unlabelled), labelled, pseudo_labelled]
    joint, whole = CachedForward(network(), TARGET_BATCHING["joint"](given)), network()(torch.cat(streams))
    for name in ("z", "features"):
        outputs = torch.cat([getattr(joint(images), name) for images in streams])
        assert torch.equal(outputs, getattr(whole, name))


def test_joining_changes_nothing_without_batch_statistics() -> None:
    given, model = batch(), network().eval()
    separate, joined = (
        duc(CachedForward(model, TARGET_BATCHING[name](given)), given) for name in ("separate", "joint")
    )
    assert separate.keys() == joined.keys()
    for name in separate:
        torch.testing.assert_close(separate[name], joined[name])


@pytest.mark.parametrize(
    ("n_labelled", "n_pseudo_labelled", "joint", "joint_if_few"),
    [
        (0, 0, [], []),
        (3, 0, [8, 3], [8, 3]),  # less than half a batch
        (4, 0, [8, 4], []),
        (8, 1, [8, 8, 1], [8, 8, 1]),  # one small labelled batch is enough
    ],
)
def test_few_labelled_images_are_joined(
    n_labelled: int, n_pseudo_labelled: int, joint: list[int], joint_if_few: list[int]
) -> None:
    given = batch(n_labelled, n_pseudo_labelled)
    assert [len(stream) for stream in TARGET_BATCHING["joint"](given)] == joint
    assert [len(stream) for stream in TARGET_BATCHING["joint_if_few"](given)] == joint_if_few


def test_segmentation_rejects_joint_batches() -> None:
    with pytest.raises(UserError, match=r"train\.target_batching is for images"):
        load_config(["data/streets"], ["train.target_batching=joint"])
