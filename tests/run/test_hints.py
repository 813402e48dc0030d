"""Annotator hints against an independent computation."""

import json
import os
from pathlib import Path

import hints_worker
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from torch import Tensor
from torch.nn import functional as F

from ducats.data import toy
from ducats.data.domain import Images
from ducats.data.streets import streets
from ducats.data.views import apply_view
from ducats.models import EvidentialModel
from ducats.run.hints import image_hints, pixel_hints
from ducats.settings import View
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor, sample_aug_params
from ducats.training.task import label_grid_sizes
from ducats.utils.randomness import make_generator
from ranks import in_ranks

Array = NDArray[np.float64]


def predictor(model: EvidentialModel, view: View) -> Predictor:
    return Predictor(model=model, view=view, batch_size=2, fabric=make_fabric("cpu"), seed=5)


def reference_uncertainties(z: Tensor) -> tuple[Array, Array, Array]:
    """Return probabilities (C, N), U_dis and U_data of log alpha (C, N), by the paper's formulas."""
    alpha = np.exp(z.double().numpy())
    p = alpha / alpha.sum(0)
    u_data = (p * (digamma(alpha.sum(0) + 1) - digamma(alpha + 1))).sum(0)
    return p, -(p * np.log(p)).sum(0) - u_data, u_data


def logits(model: EvidentialModel, images: Images, view: View) -> Tensor:
    """Return the model's logits, image by image."""
    aug_params = sample_aug_params(images, view, make_generator(5, "scoring"))
    model.eval()
    with torch.no_grad():
        outputs = [
            model(apply_view(images.pixels[i : i + 1], view, aug_params[i : i + 1])).z
            for i in range(len(images.pixels))
        ]
    return torch.cat(outputs)


def share_below(values: Array, value: float) -> float:
    return sum(1 for one in values if one < value - 1e-7) / len(values)


def test_image_hints() -> None:
    pool = toy(n_pool=11).pool
    request = hints_worker.request_images(11)
    assert request.image.tolist() == [10, 7, 4, 1]
    hints = image_hints(predictor(hints_worker.image_model(), hints_worker.RANDOM_VIEW), pool, request)
    p, u_dis, u_data = reference_uncertainties(
        logits(hints_worker.image_model(), pool, hints_worker.RANDOM_VIEW).T
    )
    assert len(hints) == 4
    for i, image in enumerate([10, 7, 4, 1]):
        assert hints.guess[i] == p[:, image].argmax()
        assert hints.probability[i] == pytest.approx(p[:, image].max(), rel=1e-5)
        assert hints.u_dis[i] == pytest.approx(u_dis[image], rel=1e-4)
        assert hints.u_data[i] == pytest.approx(u_data[image], rel=1e-4)
        assert hints.u_dis_quantile[i] == pytest.approx(share_below(u_dis, u_dis[image]))
        assert hints.u_data_quantile[i] == pytest.approx(share_below(u_data, u_data[image]))
        assert hints.segment[i] == -1
    assert len(set(hints.u_dis_quantile.tolist())) == 4  # the images differ


def flood_fill(predicted: NDArray[np.int64], start: int) -> set[int]:
    """Flood-fill: return the positions connected to ``start`` within its class."""
    height, width = predicted.shape
    visited, remaining = {start}, [start]
    while remaining:
        y, x = divmod(remaining.pop(), width)
        for v, u in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            inside = 0 <= v < height and 0 <= u < width
            if inside and predicted[v, u] == predicted[y, x] and v * width + u not in visited:
                visited.add(v * width + u)
                remaining.append(v * width + u)
    return visited


def test_pixel_and_region_hints() -> None:
    data = streets(n_source=1, n_pool=5, n_test=1, height=hints_worker.HEIGHT, width=hints_worker.WIDTH)
    model, request = hints_worker.map_model(len(data.classes)), hints_worker.request_pixels(5)
    assert request.unit_sizes is not None
    sizes = label_grid_sizes(data.pool, "network")
    hints = pixel_hints(predictor(model, View()), data.pool, request, sizes)
    assert len(hints) == request.n_units == 13
    coarse = logits(hints_worker.map_model(len(data.classes)), data.pool, View())
    z = F.interpolate(coarse, (hints_worker.HEIGHT, hints_worker.WIDTH), mode="bilinear", align_corners=True)
    segments: dict[tuple[int, int], set[int]] = {}
    units = zip(
        request.image.split(request.unit_sizes.tolist()),
        request.position.split(request.unit_sizes.tolist()),
        strict=True,
    )
    for i, (unit_images, unit_positions) in enumerate(units):
        position = unit_positions.numpy()
        image = int(unit_images[0])
        p, u_dis, u_data = reference_uncertainties(z[image].flatten(1))
        mean = p[:, position].mean(1)
        assert hints.guess[i] == mean.argmax()
        assert hints.probability[i] == pytest.approx(mean.max(), rel=1e-5)
        for name, values in (("u_dis", u_dis), ("u_data", u_data)):
            own = values[position].mean()
            assert getattr(hints, name)[i] == pytest.approx(own, rel=1e-4)
            assert getattr(hints, f"{name}_quantile")[i] == pytest.approx(share_below(values, own), abs=3e-3)
        # The centre of a 3 x 3 region is its fifth pixel; that of two neighbours is the first.
        centre = int(position[len(position) // 2] if len(position) == 9 else position[0])
        segment = flood_fill(p.argmax(0).reshape(hints_worker.HEIGHT, hints_worker.WIDTH), centre)
        known = segments.setdefault((image, int(hints.segment[i])), segment)
        assert known == segment  # same number, same segment
    segment_keys = [(image, min(segment)) for (image, _), segment in segments.items()]
    assert len(set(segment_keys)) == len(segment_keys)  # different number, different segment
    assert len(segment_keys) < len(hints)  # some units share a segment


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("count", [5, 2])  # an odd number of batches; and fewer batches than processes
def test_two_processes_give_the_hints_of_one(tmp_path: Path, count: int) -> None:
    hints_worker.main(1, count, tmp_path / "1.json")
    done = in_ranks(lambda _: hints_worker.main(2, count, tmp_path / "2.json"), tmp_path / "output")
    assert done.codes == [0, 0], done.outputs
    one, two = (json.loads((tmp_path / f"{n}.json").read_text()) for n in (1, 2))
    assert one == two
    assert len(one["pixels"]["guess"]) == 3 * (count - 1) + 1
