"""Model hints for annotators: predicted class, probability and uncertainties of each question."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.columns import Array
from ducats.data.views import View
from ducats.dirichlet import expected_probability, uncertainties
from ducats.domain import Images
from ducats.engine.forward import check_finite, luck_of, said
from ducats.engine.processes import gather, share_of, together
from ducats.engine.score import table
from ducats.engine.task import Task
from ducats.grid import dense
from ducats.ledger import Notes, Request, middles
from ducats.ledger.notes import TYPES
from ducats.randomness import fork

COLUMNS = tuple(column.name for column in fields(Notes))  # column order of the rows below


@torch.inference_mode()
def image_notes(
    model: nn.Module,
    pool: Images,
    request: Request,
    *,
    view: View,
    batch_size: int,
    seed: int,
    fabric: Fabric,
) -> Notes:
    """Compute the hints of each requested image, in order; uncertainties are ranked within the pool.

    Args:
        seed: the seed that the query used, for views with random augmentation.
        fabric: all processes take part, and all get the hints.
    """
    z = table(model, pool, ("z",), view=view, batch_size=batch_size, seed=seed, fabric=fabric).z
    probability, guess = expected_probability(z).max(1)
    found, asked = uncertainties(z), request.image
    dis, data = found.distribution, found.data
    columns = [
        guess,
        probability,
        dis,
        data,
        _above(dis, dis),
        _above(data, data),
        torch.full_like(guess, -1),
    ]
    return _notes(torch.stack([column[asked].double() for column in columns], 1))


@torch.inference_mode()
def pixel_notes(
    model: nn.Module,
    pool: Images,
    request: Request,
    *,
    task: Task,
    sizes: Tensor,
    view: View,
    batch_size: int,
    seed: int,
    fabric: Fabric,
) -> Notes:
    """Compute the hints of each requested pixel unit, in order; uncertainties are ranked within the image.

    Args:
        sizes: ``(N, 2)``, height and width of the labelling grid.
        seed: the seed that the query used, for views with random augmentation.
        fabric: all processes take part, and all get the hints.
    """
    blocks = _by_image(request)
    # Split into the query's batches first, then drop some: each image's batch is the same as in the query.
    batches = [
        b for b in torch.arange(len(pool)).split(batch_size) if not blocks.keys().isdisjoint(b.tolist())
    ]
    mine, luck = share_of(batches, fabric), luck_of(pool, view, fork(seed, "scoring"))

    def look() -> Tensor:
        rows = [torch.zeros(0, 1 + len(COLUMNS), dtype=torch.float64)]
        for index, output in said(model, pool, mine, view=view, luck=luck, fabric=fabric):
            check_finite(output.z)
            for place, image in enumerate(index.tolist()):
                if image in blocks:
                    tall, wide = (int(side) for side in sizes[image])
                    one = output._replace(z=output.z[place : place + 1])
                    rows += _units(dense(one, (tall, wide), twice=task.twice), blocks[image])
        return torch.cat(rows)

    rows = gather(together(fabric, look), fabric)
    return _notes(rows[rows[:, 0].argsort(), 1:])


Blocks = Sequence[tuple[int, Array, Array]]  # index of the first unit, positions, unit sizes


def _by_image(request: Request) -> Mapping[int, Blocks]:
    """Group the requested blocks by image."""
    found: dict[int, list[tuple[int, Array, Array]]] = {}
    first = 0
    for block in request.blocks():
        found.setdefault(block.image, []).append((first, block.position.numpy(), block.unit.numpy()))
        first += len(block.unit)
    return found


def _units(z: Tensor, blocks: Blocks) -> Iterator[Tensor]:
    """Yield one block of rows per request block: each unit's index in the request, then all ``COLUMNS``.

    Args:
        z: log alpha of one image, ``(1, C, H, W)``.
    """
    width = int(z.shape[-1])
    probability, found = expected_probability(z)[0].flatten(1), uncertainties(z)
    guessed = probability.argmax(0).cpu().numpy().reshape(-1, width)
    dis, data = found.distribution.flatten(), found.data.flatten()
    for first, position, unit in blocks:
        place = torch.from_numpy(position).to(z.device)
        mean = _mean(probability[:, place], unit)
        own, guess = mean.max(0)
        u_dis, u_data = (_mean(some[place][None], unit)[0] for some in (dis, data))
        above = (_above(one, some) for one, some in ((u_dis, dis), (u_data, data)))
        segment = torch.from_numpy(segments(guessed, middles(position, unit, width)))
        number = torch.arange(first, first + len(unit))
        columns = [number, guess, own, u_dis, u_data, *above, segment]
        yield torch.stack([column.double() for column in columns], 1)


def _mean(values: Tensor, unit: Array) -> Tensor:
    """Average over the pixels of each unit: ``(K, A) -> (K, U)``, float64 on the CPU."""
    every: Array = values.cpu().numpy().astype(np.float64)
    return torch.from_numpy(np.add.reduceat(every, np.cumsum(unit) - unit, axis=1) / unit)


def _above(values: Tensor, among: Tensor) -> Tensor:
    """Return, for each value, the fraction of ``among`` that is lower, on the CPU."""
    return torch.searchsorted(among.sort().values, values.to(among)).cpu() / len(among)


def segments(guessed: Array, middle: Array) -> Array:
    """Return, for each position, the id of its segment: a 4-connected component of one class.

    Args:
        guessed: ``(H, W)``, predicted class of each pixel.
        middle: ``(U,)``, positions.

    >>> segments(np.array([[1, 1, 0], [0, 0, 1]]), np.array([0, 1, 5, 3, 2])).tolist()
    [3, 3, 4, 2, 1]
    """
    # Imported here because only segmentation needs it.
    from scipy.ndimage import label

    flat = guessed.reshape(-1)
    found, before = np.zeros(len(middle), np.int64), 0
    for one in np.unique(flat[middle]):
        pieces, count = label(guessed == one)
        of_class = flat[middle] == one
        found[of_class] = pieces.reshape(-1)[middle[of_class]] + before
        before += count
    return found


def _notes(rows: Tensor) -> Notes:
    """Convert the columns to the dtypes in which they are stored."""
    columns = zip(COLUMNS, rows.T, strict=True)
    return Notes(**{name: column.numpy().astype(TYPES.get(name, np.float32)) for name, column in columns})
