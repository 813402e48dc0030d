import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from ducats.data.domain import Images
from ducats.data.embedding_cache import EmbeddingCache
from ducats.models import timm_classifier
from ducats.models.classifier import Classifier
from ducats.models.freezing import freeze_backbone
from ducats.settings import StreamViews, View
from ducats.training.distributed import make_fabric
from ducats.training.embed import Embedder, embed_image_sets, fixed_views
from ducats.training.inputs import EmbeddingInputs, PixelInputs, model_inputs
from ducats.utils.errors import UserError

VIEWS = StreamViews(test=View(crop="center", size=32), embedded=4)


def make_network(seed: int = 0) -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = timm_classifier(classes=3, channels=3, backbone="test_resnet", pretrained=False)
    freeze_backbone(network, "backbone")
    return network.eval()


def make_images(count: int = 5, generator_seed: int = 0, **parts: Tensor) -> Images:
    generator = torch.Generator().manual_seed(generator_seed)
    pixels = torch.randint(256, (count, 3, 40, 40), dtype=torch.uint8, generator=generator)
    return Images(tuple(map(str, range(count))), pixels, **parts)  # type: ignore[arg-type]


class CountingNetwork(Classifier):
    """Counts the different images that it embeds."""

    embedded = 0

    def embed(self, images: Tensor) -> Tensor:
        self.embedded += (
            len(images.flatten(1).unique(dim=0)) if len(images) else 0
        )  # a batch is filled with copies
        return super().embed(images)


def make_embedder(folder: Path, views: StreamViews = VIEWS, seed: int = 0, max_gb: float = 1.0) -> Embedder:
    network = make_network(seed)
    network.__class__ = CountingNetwork
    fabric = make_fabric("cpu")
    return Embedder.build(network, fixed_views(views), fabric, EmbeddingCache(folder, max_gb))


def count(embedder: Embedder) -> int:
    assert isinstance(embedder.network, CountingNetwork)
    return embedder.network.embedded


@torch.no_grad()
def test_fixed_views_are_the_centre_its_mirror_image_and_crops(tmp_path: Path) -> None:
    images, network = make_images(), make_network()
    embeddings = make_embedder(tmp_path).embed(images)
    assert embeddings.shape == (5, 4, network.embedding_width)
    centre = images.pixels[:, :, 4:36, 4:36].float() / 255
    torch.testing.assert_close(embeddings[:, 0], network.embed(centre))
    torch.testing.assert_close(embeddings[:, 1], network.embed(centre.flip(-1)))
    differences = (embeddings[:, :, None] - embeddings[:, None]).abs().sum(-1)
    assert bool((differences + torch.eye(4) > 0).all())  # all views differ


def test_an_image_has_the_same_embedding_in_any_set(tmp_path: Path) -> None:
    images = make_images()
    one = Images(("other",), images.pixels[3:4])
    alone = make_embedder(tmp_path / "a").embed(one)
    assert torch.equal(alone[0], make_embedder(tmp_path / "b").embed(images)[3])


def test_each_view_is_embedded_once(tmp_path: Path) -> None:
    images, first, second = make_images(), make_embedder(tmp_path), make_embedder(tmp_path)
    expected = first.embed(images)
    assert count(first) == 5 * 4
    assert torch.equal(second.embed(images), expected)
    assert torch.equal(second.embed_first_view(images.pixels[:], torch.ones(5)), expected[:, 0])
    assert count(second) == 0
    more = make_embedder(tmp_path, replace(VIEWS, embedded=6))
    assert torch.equal(more.embed(images)[:, :4], expected)
    assert count(more) == 5 * 2


def test_no_stale_embedding_is_used(tmp_path: Path) -> None:
    images = make_images()
    make_embedder(tmp_path).embed(images)
    pixels = images.pixels[:].clone()
    pixels[2, 0, 20, 20] ^= 1
    changed_image = make_embedder(tmp_path)
    changed_image.embed(replace(images, pixels=pixels))
    assert count(changed_image) == 4
    other_weights = make_embedder(tmp_path, seed=1)
    assert not torch.equal(other_weights.embed(images), changed_image.embed(images))
    assert count(other_weights) == 5 * 4
    other_view = make_embedder(tmp_path, replace(VIEWS, test=View(crop="center", size=24)))
    other_view.embed(images)
    assert count(other_view) == 5 * 4


def test_without_room_nothing_is_stored(tmp_path: Path) -> None:
    embedder = make_embedder(tmp_path, max_gb=0)
    expected = embedder.embed(make_images())
    assert torch.equal(embedder.embed(make_images()), expected)
    assert count(embedder) == 2 * 5 * 4
    assert sum(space.images for space in EmbeddingCache(tmp_path).spaces()) == 0


def test_large_sets_go_to_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = make_embedder(tmp_path).embed(make_images())
    monkeypatch.setattr("ducats.training.embed.free_memory_gb", lambda: 0.0)
    assert torch.equal(make_embedder(tmp_path).embed(make_images()), expected)


def test_sets_that_fit_nowhere_are_refused_before_they_are_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ducats.training.embed.free_memory_gb", lambda: 0.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    embedder = make_embedder(tmp_path)
    with pytest.raises(UserError, match="TMPDIR"):
        embed_image_sets([(embedder, make_images())])
    assert count(embedder) == 0


def test_sets_of_one_run_do_not_displace_each_other(tmp_path: Path) -> None:
    """A cache for 12 rows, and 10 + 5 to store: the second set does not fit, and nothing is removed."""
    embedder = make_embedder(tmp_path)
    two = replace(embedder, views=embedder.views[:2])
    one = replace(embedder, views=embedder.views[:1])
    others = make_images(generator_seed=1)
    embedder.cache.max_bytes = 12 * one.image_bytes(others) + 1500  # for keys and descriptions
    with pytest.warns(UserWarning, match="computes 5 of them again.*embedding_cache_gb=2"):
        expected = embed_image_sets([(two, make_images()), (one, others)])
    embedded_before = count(embedder)
    with pytest.warns(UserWarning, match="computes 5 of them again"):
        found = embed_image_sets([(two, make_images()), (one, others)])
    assert all(map(torch.equal, found, expected))
    assert count(embedder) == embedded_before + 5


def test_aspect_ratios_matter_only_to_views_that_keep_them(tmp_path: Path) -> None:
    squash, keep = VIEWS, replace(VIEWS, test=replace(VIEWS.test, resize="short_side"))
    for views, expected in ((squash, 0), (keep, 4 * 5)):
        make_embedder(tmp_path, views).embed(make_images(aspect=torch.full((5,), 2.0)))
        again = make_embedder(tmp_path, views)
        again.embed(make_images(aspect=torch.full((5,), 1.5)))
        assert count(again) == expected


def test_random_views_choose_an_embedding_and_others_get_the_first() -> None:
    embeddings = torch.arange(300.0).view(100, 3, 1)
    images, index = make_images(100, embeddings=embeddings), torch.arange(0, 100, 2)
    generator = torch.Generator().manual_seed(0)
    for view, expected in ((View(crop="center", size=8), {0.0}), (View(flip=0.5), {0.0, 1.0, 2.0})):
        inputs = model_inputs(images, view)
        assert isinstance(inputs, EmbeddingInputs)
        chosen = inputs.apply(inputs.stored[index], inputs.sample_params(index, generator))
        assert chosen.shape == (50, 1)
        assert set((chosen.squeeze(1) - 3 * index).tolist()) == expected
    assert isinstance(model_inputs(make_images(), View()), PixelInputs)


@pytest.mark.parametrize(
    ("view", "is_random"),
    [
        (View(), False),
        (View(crop="center", size=8), False),
        (View(crop="random", size=8), True),
        (View(crop="random_resized", size=8), True),
        (View(flip=0.5), True),
        (View(jitter=(0, 0.1, 0, 0)), True),
        (View(randaugment=(1, 1)), True),
        (View(cutout=0.1), True),
    ],
)
def test_which_views_are_random(view: View, is_random: bool) -> None:
    assert view.is_random is is_random
