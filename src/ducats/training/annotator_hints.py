"""Model hints for annotators: predicted class, probability and uncertainties of each question."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.data.domain import Images
from ducats.data.views import View
from ducats.dirichlet import expected_probability, uncertainties
from ducats.ledger import Request, central_pixels
from ducats.models.upsampling import upsample
from ducats.runfolder.hints import HINT_DTYPES, AnnotatorHints
from ducats.training.distributed import all_gather_rows, all_ranks_or_raise, rank_share
from ducats.training.forward import check_finite, forward_batches, sample_aug_params
from ducats.training.image_selection import score_images
from ducats.training.task import TaskOptions
from ducats.utils.npz_columns import AnyArray
from ducats.utils.randomness import make_generator

HINT_FIELDS = tuple(column.name for column in fields(AnnotatorHints))  # column order of the rows below


@torch.inference_mode()
def image_hints(
    model: nn.Module,
    pool: Images,
    request: Request,
    *,
    view: View,
    batch_size: int,
    seed: int,
    fabric: Fabric,
) -> AnnotatorHints:
    """Compute the hints of each requested image, in order; uncertainties are ranked within the pool.

    Args:
        seed: the seed that the query used, for views with random augmentation.
        fabric: all processes take part, and all get the hints.
    """
    z = score_images(model, pool, ("z",), view=view, batch_size=batch_size, seed=seed, fabric=fabric).z
    probability, guess = expected_probability(z).max(1)
    uncertainty, requested = uncertainties(z), request.image
    dis, data = uncertainty.distribution, uncertainty.data
    columns = [
        guess,
        probability,
        dis,
        data,
        _share_below(dis, dis),
        _share_below(data, data),
        torch.full_like(guess, -1),
    ]
    return _make_hints(torch.stack([column[requested].double() for column in columns], 1))


@torch.inference_mode()
def pixel_hints(
    model: nn.Module,
    pool: Images,
    request: Request,
    *,
    task: TaskOptions,
    sizes: Tensor,
    view: View,
    batch_size: int,
    seed: int,
    fabric: Fabric,
) -> AnnotatorHints:
    """Compute the hints of each requested pixel unit, in order; uncertainties are ranked within the image.

    Args:
        sizes: ``(N, 2)``, height and width of the labelling grid.
        seed: the seed that the query used, for views with random augmentation.
        fabric: all processes take part, and all get the hints.
    """
    blocks = _blocks_by_image(request)
    # Split into the query's batches first, then drop some: each image's batch is the same as in the query.
    batches = [
        b for b in torch.arange(len(pool)).split(batch_size) if not blocks.keys().isdisjoint(b.tolist())
    ]
    own_batches = rank_share(batches, fabric)
    aug_params = sample_aug_params(pool, view, make_generator(seed, "scoring"))

    def compute_rows() -> Tensor:
        rows = [torch.zeros(0, 1 + len(HINT_FIELDS), dtype=torch.float64)]
        for index, output in forward_batches(
            model, pool, own_batches, view=view, aug_params=aug_params, fabric=fabric
        ):
            check_finite(output.z)
            for i, image in enumerate(index.tolist()):
                if image in blocks:
                    height, width = (int(side) for side in sizes[image])
                    one = output._replace(z=output.z[i : i + 1])
                    rows += _hint_rows(
                        upsample(one, (height, width), two_step_upsampling=task.two_step_upsampling),
                        blocks[image],
                    )
        return torch.cat(rows)

    rows = all_gather_rows(all_ranks_or_raise(fabric, compute_rows), fabric)
    return _make_hints(rows[rows[:, 0].argsort(), 1:])


ImageBlocks = Sequence[tuple[int, AnyArray, AnyArray]]  # index of the first unit, positions, unit sizes


def _blocks_by_image(request: Request) -> Mapping[int, ImageBlocks]:
    """Group the requested blocks by image."""
    found: dict[int, list[tuple[int, AnyArray, AnyArray]]] = {}
    first = 0
    for block in request.blocks():
        found.setdefault(block.image, []).append((first, block.position.numpy(), block.unit_sizes.numpy()))
        first += len(block.unit_sizes)
    return found


def _hint_rows(z: Tensor, blocks: ImageBlocks) -> Iterator[Tensor]:
    """Yield one block of rows per request block: each unit's index in the request, then all ``HINT_FIELDS``.

    Args:
        z: log alpha of one image, ``(1, C, H, W)``.
    """
    width = int(z.shape[-1])
    probability, uncertainty = expected_probability(z)[0].flatten(1), uncertainties(z)
    predicted = probability.argmax(0).cpu().numpy().reshape(-1, width)
    dis, data = uncertainty.distribution.flatten(), uncertainty.data.flatten()
    for first, position, unit in blocks:
        pixel_index = torch.from_numpy(position).to(z.device)
        mean = _unit_means(probability[:, pixel_index], unit)
        max_probability, guess = mean.max(0)
        u_dis, u_data = (_unit_means(some[pixel_index][None], unit)[0] for some in (dis, data))
        shares_below = (_share_below(one, some) for one, some in ((u_dis, dis), (u_data, data)))
        segment = torch.from_numpy(connected_segments(predicted, central_pixels(position, unit, width)))
        number = torch.arange(first, first + len(unit))
        columns = [number, guess, max_probability, u_dis, u_data, *shares_below, segment]
        yield torch.stack([column.double() for column in columns], 1)


def _unit_means(values: Tensor, unit: AnyArray) -> Tensor:
    """Average over the pixels of each unit: ``(K, A) -> (K, U)``, float64 on the CPU."""
    values64: AnyArray = values.cpu().numpy().astype(np.float64)
    return torch.from_numpy(np.add.reduceat(values64, np.cumsum(unit) - unit, axis=1) / unit)


def _share_below(values: Tensor, population: Tensor) -> Tensor:
    """Return, for each value, the fraction of ``population`` that is lower, on the CPU."""
    return torch.searchsorted(population.sort().values, values.to(population)).cpu() / len(population)


def connected_segments(predicted: AnyArray, positions: AnyArray) -> AnyArray:
    """Return, for each position, the id of its segment: a 4-connected component of one class.

    Args:
        predicted: ``(H, W)``, predicted class of each pixel.
        positions: ``(U,)``, positions.

    >>> connected_segments(np.array([[1, 1, 0], [0, 0, 1]]), np.array([0, 1, 5, 3, 2])).tolist()
    [3, 3, 4, 2, 1]
    """
    # Imported here because only segmentation needs it.
    from scipy.ndimage import label

    flat = predicted.reshape(-1)
    found, offset = np.zeros(len(positions), np.int64), 0
    for class_index in np.unique(flat[positions]):
        components, count = label(predicted == class_index)
        of_class = flat[positions] == class_index
        found[of_class] = components.reshape(-1)[positions[of_class]] + offset
        offset += count
    return found


def _make_hints(rows: Tensor) -> AnnotatorHints:
    """Convert the columns to the dtypes in which they are stored."""
    columns = zip(HINT_FIELDS, rows.T, strict=True)
    return AnnotatorHints(
        **{name: column.numpy().astype(HINT_DTYPES.get(name, np.float32)) for name, column in columns}
    )
