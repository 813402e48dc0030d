"""Annotator hints against an independent computation."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F
from untrained_models import (
    HEIGHT,
    RANDOM_VIEW,
    WIDTH,
    Array,
    image_model,
    map_model,
    outputs_one_by_one,
    reference_uncertainties,
)

from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.ledger import Request
from ducats.models import EvidentialModel
from ducats.run.hints import image_hints, pixel_hints
from ducats.settings import View
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.training.task import label_grid_sizes
from present import present


def request_pixels() -> Request:
    """Request a region and single pixels of all images but the second, then one more unit of the first."""
    region = (torch.arange(3)[:, None] * WIDTH + torch.arange(3)).flatten() + 2 * WIDTH + 4
    images = [0, 2, 3, 4]
    position = [torch.cat([region + i, torch.tensor([0, 500 - i])]) for i in images]
    image = torch.tensor([*images, 0]).repeat_interleave(torch.tensor([11, 11, 11, 11, 2]))
    units = torch.tensor([9, 1, 1] * len(images) + [2])
    return Request(1, image, torch.cat([*position, torch.tensor([40, 41])]), units)


def predictor(model: EvidentialModel, view: View) -> Predictor:
    return Predictor(model=model, view=view, batch_size=2, fabric=make_fabric("cpu"), seed=5)


def share_below(values: Array, value: float) -> float:
    return sum(1 for one in values if one < value - 1e-7) / len(values)


def test_image_hints() -> None:
    pool = toy(n_pool=11).pool
    images = torch.tensor([10, 7, 4, 1])  # not in order
    request = Request(1, images, torch.zeros_like(images))
    hints = image_hints(predictor(image_model(), RANDOM_VIEW), pool, request)
    p, u_dis, u_data = reference_uncertainties(outputs_one_by_one(image_model(), pool, RANDOM_VIEW, 5)[0])
    assert len(hints) == 4
    for i, image in enumerate([10, 7, 4, 1]):
        assert hints.guess[i] == p[image].argmax()
        assert hints.probability[i] == pytest.approx(p[image].max(), rel=1e-5)
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
    data = streets(n_source=1, n_pool=5, n_test=1, height=HEIGHT, width=WIDTH)
    model, request = map_model(len(data.classes)), request_pixels()
    unit_sizes = present(request.unit_sizes).tolist()
    sizes = label_grid_sizes(data.pool, "network")
    hints = pixel_hints(predictor(model, View()), data.pool, request, sizes)
    assert len(hints) == request.n_units == 13
    coarse, _ = outputs_one_by_one(map_model(len(data.classes)), data.pool, View(), 5)
    z = F.interpolate(coarse, (HEIGHT, WIDTH), mode="bilinear", align_corners=True)
    segments: dict[tuple[int, int], set[int]] = {}
    units = zip(request.image.split(unit_sizes), request.position.split(unit_sizes), strict=True)
    for i, (unit_images, unit_positions) in enumerate(units):
        position = unit_positions.numpy()
        image = int(unit_images[0])
        p, u_dis, u_data = reference_uncertainties(z[image].flatten(1).T)
        mean = p[position].mean(0)
        assert hints.guess[i] == mean.argmax()
        assert hints.probability[i] == pytest.approx(mean.max(), rel=1e-5)
        for name, values in (("u_dis", u_dis), ("u_data", u_data)):
            own = values[position].mean()
            assert getattr(hints, name)[i] == pytest.approx(own, rel=1e-4)
            assert getattr(hints, f"{name}_quantile")[i] == pytest.approx(share_below(values, own), abs=3e-3)
        # The centre of a 3 x 3 region is its fifth pixel; that of two neighbours is the first.
        centre = int(position[len(position) // 2] if len(position) == 9 else position[0])
        segment = flood_fill(p.argmax(1).reshape(HEIGHT, WIDTH), centre)
        known = segments.setdefault((image, int(hints.segment[i])), segment)
        assert known == segment  # same number, same segment
    segment_keys = [(image, min(segment)) for (image, _), segment in segments.items()]
    assert len(set(segment_keys)) == len(segment_keys)  # different number, different segment
    assert len(segment_keys) < len(hints)  # some units share a segment
