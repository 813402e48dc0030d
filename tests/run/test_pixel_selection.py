"""Pixel selection against a plain loop: interpolate, score, sort."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from untrained_models import reference_uncertainties

from ducats.acquisition.queries import QUERIES, QuerySpec
from ducats.acquisition.samples import QueryContext, SampleTable
from ducats.acquisition.units import PixelSelection
from ducats.data.domain import UNLABELLED, VOID, Images
from ducats.data.streets import streets
from ducats.models import EvidentialModel, small_fcn
from ducats.run.pixel_selection import all_open_pixels, score_whole_images, select_pixels
from ducats.settings import Unit, View
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.training.task import label_grid_sizes
from ducats.utils.errors import UserError
from ducats.utils.randomness import global_seed
from present import present

POOL = streets(n_source=1, n_pool=5, n_test=0, height=16, width=32).pool
SIZES = torch.tensor([[16, 32], [21, 30], [40, 33], [16, 32], [9, 50]])
NETWORK_SIZES = label_grid_sizes(POOL, "network")


def model(evidence: str = "exp_at_most_10") -> EvidentialModel:
    with global_seed(0, "model"):
        made = EvidentialModel(small_fcn(classes=4, channels=3, width=8), evidence)
    for parameter in made.network.head.parameters():  # type: ignore[union-attr]
        parameter.data *= 20  # such that the clamp has an effect
    return made.eval()


def known_labels(sizes: Tensor) -> list[Tensor]:
    """Return label maps with void, labelled and unlabelled pixels."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(VOID, 1, tuple(size), generator=generator).to(torch.int8) for size in sizes.tolist()
    ]


def select(
    query: QuerySpec,
    budget: int | list[int],
    task: Unit | None = None,
    sizes: Tensor = NETWORK_SIZES,
    *,
    network: nn.Module | None = None,
    pool: Images = POOL,
    batch_size: int = 2,
    seed: int = 3,
    two_step: bool = False,
) -> dict[int, PixelSelection]:
    """Select pixels; a number is the budget of each image."""
    maps, fabric = known_labels(sizes), make_fabric("cpu")
    predictor = Predictor(
        model=fabric.setup(network or model()),
        view=View(),
        batch_size=batch_size,
        fabric=fabric,
        seed=seed,
        two_step_upsampling=two_step,
    )
    selections = select_pixels(
        predictor,
        pool,
        query,
        unit=task or Unit(),
        sizes=sizes,
        known_labels_of=lambda image: maps[image],
        budget=[budget] * len(POOL) if isinstance(budget, int) else budget,
    )
    return dict(selections)


def select_positions(*what: Any, **options: Any) -> list[list[int]]:
    """Likewise; return the positions in each image."""
    found = select(*what, **options)
    assert list(found) == list(range(len(POOL)))
    return [one.position.tolist() for one in found.values()]


def plain_z(image: int, size: tuple[int, int], two_step: bool = False) -> Tensor:
    """Compute log alpha of each pixel in float64, the direct way."""
    with torch.inference_mode():
        logits = model().network(POOL.pixels[image][None].float() / 255)[0].double()
        if two_step:
            logits = F.interpolate(logits, (16, 32), mode="bilinear", align_corners=True).clamp(max=10)
        logits = F.interpolate(logits, size, mode="bilinear", align_corners=True)
    return logits[0] if two_step else logits[0].clamp(max=10)


def best_unlabelled(score: Tensor, target: Tensor, count: int) -> list[int]:
    """Return the best unlabelled pixels, best first; ties go to the lower position."""
    values, open_ = score.flatten().numpy(), (target.flatten() == UNLABELLED).nonzero().squeeze(1).numpy()
    ranked: list[int] = open_[np.argsort(-values[open_], kind="stable")][:count].tolist()
    return ranked


def entropy(z: Tensor) -> Tensor:
    found: Tensor = torch.distributions.Categorical(logits=z.movedim(0, -1)).entropy()
    return found


def margin(z: Tensor) -> Tensor:
    top = z.softmax(0).topk(2, 0).values
    return top[1] - top[0]


@pytest.mark.parametrize(("name", "score"), [("entropy", entropy), ("margin", margin)])
@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("two_step", [False, True])
def test_best_unlabelled_pixels_of_each_image(name: str, score: Any, original: bool, two_step: bool) -> None:
    sizes = SIZES if original else NETWORK_SIZES
    budget, maps = [7, 0, 30, 1, 2000], known_labels(sizes)
    found = select_positions(QUERIES[name], budget, None, sizes, two_step=two_step)
    for image, positions in enumerate(found):
        z = plain_z(image, (int(sizes[image, 0]), int(sizes[image, 1])), two_step and original)
        open_ = int((maps[image] == UNLABELLED).sum())
        assert len(positions) == min(budget[image], open_)
        expected = best_unlabelled(score(z), maps[image], len(positions))
        # Scores agree to seven digits only: compare as sets, then the order up to that precision.
        values = score(z).flatten()
        assert set(positions) == set(expected)
        assert torch.allclose(values[positions], values[expected], atol=1e-5)


def test_grid_size_follows_the_resolution() -> None:
    sized = replace(POOL, original_sizes=SIZES)
    assert label_grid_sizes(sized, "network").tolist() == [[16, 32]] * 5
    assert label_grid_sizes(sized, "original").tolist() == SIZES.tolist()
    assert label_grid_sizes(replace(POOL, original_sizes=None), "original").tolist() == [[16, 32]] * 5


class MustNotRun(nn.Module):
    """A model that must not be called."""

    def forward(self, images: Tensor) -> Tensor:
        raise AssertionError("nothing was needed")


def random_query(context: QueryContext) -> Tensor:
    return torch.randperm(len(context.candidates), generator=context.generator)[: context.budget]


@pytest.mark.parametrize("query", [QUERIES["random"], QuerySpec(random_query, ())])
def test_random_pixels_need_no_forward_pass_and_depend_only_on_seed_and_image(query: QuerySpec) -> None:
    found = select_positions(query, 9, network=MustNotRun())
    assert found == select_positions(query, 9, network=MustNotRun(), batch_size=5)
    assert found != select_positions(query, 9, network=MustNotRun(), seed=4)
    assert len({tuple(positions) for positions in found}) == 5
    for positions, labels in zip(found, known_labels(NETWORK_SIZES), strict=True):
        assert (labels.flatten()[positions] == UNLABELLED).all()


def test_nan_logits_raise() -> None:
    broken = model()
    broken.network.head.weight.data.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(UserError, match="no longer finite"):
        select_positions(QUERIES["entropy"], 1, network=broken)


# ---- whole images


def score_pool(query: QuerySpec, sizes: Tensor, maps: list[Tensor]) -> SampleTable:
    fabric = make_fabric("cpu")
    predictor = Predictor(model=fabric.setup(model()), view=View(), batch_size=2, fabric=fabric)
    return score_whole_images(predictor, POOL, query, sizes=sizes, known_labels_of=lambda image: maps[image])


def test_whole_image_columns_average_unlabelled_pixels() -> None:
    maps = known_labels(SIZES)
    maps[3][:] = 0  # fully labelled: still a row, over all its pixels
    needs = ("entropy", "u_dis", "z", "features")
    found = score_pool(QuerySpec(QUERIES["coverage"].fn, needs), SIZES, maps)
    assert found.image.tolist() == [0, 1, 2, 3, 4]
    assert found.features.shape == (5, 16)
    for image, (height, width) in enumerate(SIZES.tolist()):
        z = plain_z(image, (height, width))
        open_ = maps[image] == UNLABELLED if image != 3 else maps[image] == 0
        pixels = z[:, open_].T
        expected = {
            "entropy": entropy(z)[open_].mean(),
            "u_dis": torch.from_numpy(reference_uncertainties(pixels)[1]).mean().log(),
            "z": pixels.mean(0),
        }
        for name, value in expected.items():
            assert torch.allclose(found.column(name)[image].double(), value, rtol=1e-4, atol=1e-4), name


def test_random_images_need_no_forward_pass() -> None:
    found = score_pool(QUERIES["random"], SIZES, known_labels(SIZES))
    assert (found.image.tolist(), dict(found.columns)) == ([0, 1, 2, 3, 4], {})


def test_all_open_pixels_form_one_unit() -> None:
    maps = known_labels(SIZES)
    found = all_open_pixels(lambda image: maps[image], 2)
    assert found.position.tolist() == [p for p, v in enumerate(maps[2].flatten().tolist()) if v == UNLABELLED]
    assert present(found.unit_sizes).tolist() == [len(found.position)]


def test_images_without_budget_need_no_forward_pass() -> None:
    """Images without a budget are skipped, and the batches of the others do not change."""
    batch_sizes: list[int] = []

    class Counting(nn.Module):
        """A model that counts its input images."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, images: Tensor) -> Any:
            batch_sizes.append(len(images))
            return self.inner(images)

    few = select(QUERIES["duc"], [0, 0, 0, 4, 0], network=Counting())
    assert batch_sizes == [2]
    assert {image: len(one.position) for image, one in few.items()} == {2: 0, 3: 4}
    assert few[3].position.tolist() == select(QUERIES["duc"], 4)[3].position.tolist()
