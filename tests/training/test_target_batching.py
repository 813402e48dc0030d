"""Labelled and unlabelled target images as one batch."""

import pytest
import torch
from torch import Tensor, nn

from ducats.config import load_config
from ducats.errors import UserError
from ducats.models import EvidentialModel
from ducats.models.small_cnn import small_cnn
from ducats.objectives import Batch, CachedForward, LabelledImages, duc
from ducats.training.step import TARGET_BATCHING


def images(count: int, seed: int) -> Tensor:
    return torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


def batch(bought: int = 3, certain: int = 2) -> Batch:
    return Batch(
        source=LabelledImages(images(8, 0), torch.arange(8) % 4),
        labelled=LabelledImages(images(bought, 1), torch.arange(bought)),
        unlabelled=images(8, 2),
        pseudo_labelled=LabelledImages(images(certain, 3), torch.arange(certain)),
    )


def network() -> EvidentialModel:
    torch.manual_seed(0)
    return EvidentialModel(small_cnn(classes=4, channels=1)).train()


def test_the_target_is_one_batch_and_the_source_another() -> None:
    given, seen = batch(), []

    class Counting(nn.Module):
        def forward(self, shown: Tensor) -> object:
            seen.append(len(shown))
            return network()(shown)

    duc(CachedForward(Counting(), TARGET_BATCHING["target"](given)), given)
    assert seen == [8, 8 + 3 + 2]
    seen.clear()
    duc(CachedForward(Counting(), TARGET_BATCHING["separate"](given)), given)
    assert seen == [8, 8, 3, 2]


def test_each_stream_gets_the_outputs_of_its_own_images() -> None:
    given, model = batch(), network()
    assert given.labelled is not None
    assert given.pseudo_labelled is not None
    assert given.unlabelled is not None
    streams = [given.unlabelled, given.labelled.images, given.pseudo_labelled.images]
    whole = network()(torch.cat(streams))
    assert whole.features is not None
    together = CachedForward(model, TARGET_BATCHING["target"](given))
    for shown, z, features in zip(
        streams, whole.z.split([8, 3, 2]), whole.features.split([8, 3, 2]), strict=True
    ):
        assert torch.equal(together(shown).z, z)
        said = together(shown).features
        assert said is not None
        assert torch.equal(said, features)


def test_joining_changes_nothing_without_batch_statistics() -> None:
    given, model = batch(), network().eval()
    apart, joined = (
        duc(CachedForward(model, TARGET_BATCHING[name](given)), given) for name in ("separate", "joint")
    )
    assert apart.keys() == joined.keys()
    for name in apart:
        torch.testing.assert_close(apart[name], joined[name])


def test_without_labels_nothing_is_joined() -> None:
    plain = Batch(
        source=LabelledImages(images(4, 0), torch.zeros(4).long()), labelled=None, unlabelled=images(4, 1)
    )
    assert TARGET_BATCHING["target"](plain) == ()


def test_segmentation_rejects_joint_batches() -> None:
    with pytest.raises(UserError, match=r"train\.together is for images"):
        load_config(["data/streets"], ["train.target_batching=joint"])
