"""Annotator hints against an independent computation."""

import json
import os
from pathlib import Path
from typing import Any

import hints_worker as there
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from torch import Tensor
from torch.nn import functional as F

from ducats.data import toy
from ducats.data.streets import streets
from ducats.data.views import View, apply_view
from ducats.domain import Images
from ducats.models import EvidentialModel
from ducats.randomness import make_generator
from ducats.training.annotator_hints import image_hints, pixel_hints
from ducats.training.distributed import make_fabric
from ducats.training.forward import sample_aug_params
from ducats.training.task import TaskOptions, label_grid_sizes
from ranks import in_ranks

Array = NDArray[np.float64]
COMMON_ARGS: dict[str, Any] = {"batch_size": 2, "seed": 5}


def reference_uncertainties(z: Tensor) -> tuple[Array, Array, Array]:
    """Return probabilities (C, N), U_dis and U_data of log alpha (C, N), by the paper's formulas."""
    alpha = np.exp(z.double().numpy())
    p = alpha / alpha.sum(0)
    u_data = (p * (digamma(alpha.sum(0) + 1) - digamma(alpha + 1))).sum(0)
    return p, -(p * np.log(p)).sum(0) - u_data, u_data


def logits(model: EvidentialModel, images: Images, view: View) -> Tensor:
    """Return the model's logits, image by image."""
    luck = sample_aug_params(images, view, make_generator(5, "scoring"))
    model.eval()
    with torch.no_grad():
        said = [
            model(apply_view(images.pixels[i : i + 1], view, luck[i : i + 1])).z
            for i in range(len(images.pixels))
        ]
    return torch.cat(said)


def share_below(values: Array, value: float) -> float:
    return sum(1 for one in values if one < value - 1e-7) / len(values)


def test_image_hints() -> None:
    pool = toy(n_pool=11).pool
    request = there.request_images(11)
    assert request.image.tolist() == [10, 7, 4, 1]
    notes = image_hints(
        there.image_model(), pool, request, view=there.RANDOM_VIEW, fabric=make_fabric("cpu"), **COMMON_ARGS
    )
    p, u_dis, u_data = reference_uncertainties(logits(there.image_model(), pool, there.RANDOM_VIEW).T)
    assert len(notes) == 4
    for place, image in enumerate([10, 7, 4, 1]):
        assert notes.guess[place] == p[:, image].argmax()
        assert notes.probability[place] == pytest.approx(p[:, image].max(), rel=1e-5)
        assert notes.u_dis[place] == pytest.approx(u_dis[image], rel=1e-4)
        assert notes.u_data[place] == pytest.approx(u_data[image], rel=1e-4)
        assert notes.u_dis_quantile[place] == pytest.approx(share_below(u_dis, u_dis[image]))
        assert notes.u_data_quantile[place] == pytest.approx(share_below(u_data, u_data[image]))
        assert notes.segment[place] == -1
    assert len(set(notes.u_dis_quantile.tolist())) == 4  # the images differ


def flood_fill(guess: NDArray[np.int64], start: int) -> set[int]:
    """Flood-fill: return the positions connected to ``start`` within its class."""
    tall, wide = guess.shape
    seen, left = {start}, [start]
    while left:
        y, x = divmod(left.pop(), wide)
        for v, u in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            inside = 0 <= v < tall and 0 <= u < wide
            if inside and guess[v, u] == guess[y, x] and v * wide + u not in seen:
                seen.add(v * wide + u)
                left.append(v * wide + u)
    return seen


def test_pixel_and_region_hints() -> None:
    shift = streets(n_source=1, n_pool=5, n_test=1, height=there.TALL, width=there.WIDE)
    model, request = there.map_model(len(shift.classes)), there.request_pixels(5)
    assert request.unit_sizes is not None
    notes = pixel_hints(
        model,
        shift.pool,
        request,
        task=TaskOptions(),
        sizes=label_grid_sizes(shift.pool, "network"),
        view=View(),
        fabric=make_fabric("cpu"),
        **COMMON_ARGS,
    )
    assert len(notes) == request.n_units == 13
    coarse = logits(there.map_model(len(shift.classes)), shift.pool, View())
    z = F.interpolate(coarse, (there.TALL, there.WIDE), mode="bilinear", align_corners=True)
    segments: dict[tuple[int, int], set[int]] = {}
    units = zip(
        request.image.split(request.unit_sizes.tolist()),
        request.position.split(request.unit_sizes.tolist()),
        strict=True,
    )
    for place, (owner, asked) in enumerate(units):
        position = asked.numpy()
        image = int(owner[0])
        p, u_dis, u_data = reference_uncertainties(z[image].flatten(1))
        mean = p[:, position].mean(1)
        assert notes.guess[place] == mean.argmax()
        assert notes.probability[place] == pytest.approx(mean.max(), rel=1e-5)
        for name, values in (("u_dis", u_dis), ("u_data", u_data)):
            own = values[position].mean()
            assert getattr(notes, name)[place] == pytest.approx(own, rel=1e-4)
            assert getattr(notes, f"{name}_above")[place] == pytest.approx(share_below(values, own), abs=3e-3)
        # The centre of a 3 x 3 region is its fifth pixel; that of two neighbours is the first.
        middle = int(position[len(position) // 2] if len(position) == 9 else position[0])
        piece = flood_fill(p.argmax(0).reshape(there.TALL, there.WIDE), middle)
        known = segments.setdefault((image, int(notes.segment[place])), piece)
        assert known == piece  # same number, same segment
    pieces = [(image, min(piece)) for (image, _), piece in segments.items()]
    assert len(set(pieces)) == len(pieces)  # different number, different segment
    assert len(pieces) < len(notes)  # some units share a segment


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("count", [5, 2])  # an odd number of batches; and fewer batches than processes
def test_two_processes_give_the_hints_of_one(tmp_path: Path, count: int) -> None:
    there.main(1, count, tmp_path / "1.json")
    done = in_ranks(lambda _: there.main(2, count, tmp_path / "2.json"), tmp_path / "said")
    assert done.codes == [0, 0], done.outputs
    one, two = (json.loads((tmp_path / f"{n}.json").read_text()) for n in (1, 2))
    assert one == two
    assert len(one["pixels"]["guess"]) == 3 * (count - 1) + 1
