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
    given, batch_sizes = batch(), []

    class Counting(nn.Module):
        def forward(self, stream_images: Tensor) -> object:
            batch_sizes.append(len(stream_images))
            return network()(stream_images)

    duc(CachedForward(Counting(), TARGET_BATCHING["joint"](given)), given)
    assert batch_sizes == [8, 8 + 3 + 2]
    batch_sizes.clear()
    duc(CachedForward(Counting(), TARGET_BATCHING["separate"](given)), given)
    assert batch_sizes == [8, 8, 3, 2]


def test_each_stream_gets_the_outputs_of_its_own_images() -> None:
    given, model = batch(), network()
    assert given.labelled is not None
    assert given.pseudo_labelled is not None
    assert given.unlabelled is not None
    streams = [given.unlabelled, given.labelled.images, given.pseudo_labelled.images]
    whole = network()(torch.cat(streams))
    assert whole.features is not None
    joint = CachedForward(model, TARGET_BATCHING["joint"](given))
    for stream_images, z, features in zip(
        streams, whole.z.split([8, 3, 2]), whole.features.split([8, 3, 2]), strict=True
    ):
        assert torch.equal(joint(stream_images).z, z)
        stream_features = joint(stream_images).features
        assert stream_features is not None
        assert torch.equal(stream_features, features)


def test_joining_changes_nothing_without_batch_statistics() -> None:
    given, model = batch(), network().eval()
    separate, joined = (
        duc(CachedForward(model, TARGET_BATCHING[name](given)), given) for name in ("separate", "joint")
    )
    assert separate.keys() == joined.keys()
    for name in separate:
        torch.testing.assert_close(separate[name], joined[name])


def test_without_labels_nothing_is_joined() -> None:
    assert TARGET_BATCHING["joint"](batch(0, 0)) == TARGET_BATCHING["joint_if_few"](batch(0, 0)) == ()


@pytest.mark.parametrize(
    ("n_labelled", "n_pseudo_labelled", "joined"),
    [
        (3, 0, [8, 3]),  # less than half a batch
        (4, 0, []),
        (8, 1, [8, 8, 1]),  # one small labelled batch is enough
    ],
)
def test_few_labelled_images_are_joined(n_labelled: int, n_pseudo_labelled: int, joined: list[int]) -> None:
    given = batch(n_labelled, n_pseudo_labelled)
    assert [len(stream) for stream in TARGET_BATCHING["joint_if_few"](given)] == joined


def test_segmentation_rejects_joint_batches() -> None:
    with pytest.raises(UserError, match=r"train\.target_batching is for images"):
        load_config(["data/streets"], ["train.target_batching=joint"])
