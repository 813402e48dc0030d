"""Annotator hints against an independent computation."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

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
from ranks import in_ranks


def request_images(count: int) -> Request:
    """Request some images, not in order."""
    image = torch.arange(count).flip(0)[::3]
    return Request(1, image, torch.zeros_like(image))


def request_pixels(count: int) -> Request:
    """Request a region and single pixels of all images but the second, then one more unit of the first."""
    region = (torch.arange(3)[:, None] * WIDTH + torch.arange(3)).flatten() + 2 * WIDTH + 4
    images = [i for i in range(count) if i != 1]
    position = torch.cat([torch.cat([region + i, torch.tensor([0, 500 - i])]) for i in images])
    image = torch.tensor(images).repeat_interleave(11)
    unit = torch.tensor([9, 1, 1] * len(images) + [2])
    more = torch.tensor([40, 41])
    return Request(1, torch.cat([image, torch.tensor([0, 0])]), torch.cat([position, more]), unit)


def predictor(model: EvidentialModel, view: View) -> Predictor:
    return Predictor(model=model, view=view, batch_size=2, fabric=make_fabric("cpu"), seed=5)


def share_below(values: Array, value: float) -> float:
    return sum(1 for one in values if one < value - 1e-7) / len(values)


def test_image_hints() -> None:
    pool = toy(n_pool=11).pool
    request = request_images(11)
    assert request.image.tolist() == [10, 7, 4, 1]
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
    model, request = map_model(len(data.classes)), request_pixels(5)
    assert request.unit_sizes is not None
    sizes = label_grid_sizes(data.pool, "network")
    hints = pixel_hints(predictor(model, View()), data.pool, request, sizes)
    assert len(hints) == request.n_units == 13
    coarse, _ = outputs_one_by_one(map_model(len(data.classes)), data.pool, View(), 5)
    z = F.interpolate(coarse, (HEIGHT, WIDTH), mode="bilinear", align_corners=True)
    segments: dict[tuple[int, int], set[int]] = {}
    units = zip(
        request.image.split(request.unit_sizes.tolist()),
        request.position.split(request.unit_sizes.tolist()),
        strict=True,
    )
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_give_the_hints_of_one(tmp_path: Path) -> None:
    def save_hints(processes: int) -> None:
        fabric = make_fabric("cpu", processes)
        fabric.launch()
        for count in (5, 2):  # an odd number of batches; and fewer batches than processes
            data = streets(n_source=1, n_pool=count, n_test=1, height=HEIGHT, width=WIDTH)
            images = Predictor(
                model=fabric.setup(image_model()), view=RANDOM_VIEW, batch_size=2, fabric=fabric, seed=5
            )
            maps = replace(images, model=fabric.setup(map_model(len(data.classes))), view=View())
            sizes = label_grid_sizes(data.pool, "network")
            found = (
                image_hints(images, toy(n_pool=count).pool, request_images(count)),
                pixel_hints(maps, data.pool, request_pixels(count), sizes),
            )
            assert len(found[1]) == 3 * (count - 1) + 1
            columns = [{name: column.tolist() for name, column in asdict(hints).items()} for hints in found]
            if fabric.is_global_zero:
                (tmp_path / f"{processes}-{count}.json").write_text(json.dumps(columns))

    save_hints(1)
    done = in_ranks(lambda _: save_hints(2), tmp_path / "output")
    assert done.codes == [0, 0], done.outputs
    for count in (5, 2):
        one, two = ((tmp_path / f"{processes}-{count}.json").read_text() for processes in (1, 2))
        assert one == two
