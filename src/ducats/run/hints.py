"""Model hints for annotators: predicted class, probability and uncertainties of each question."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from ducats.annotation.question import MAX_LISTED_QUESTIONS
from ducats.data.domain import Images
from ducats.dirichlet import expected_probability, uncertainties
from ducats.ledger import Request, central_pixels, load_request
from ducats.run.context import RunContext
from ducats.runfolder.hints import HINT_DTYPES, AnnotatorHints
from ducats.training.distributed import all_gather_rows, all_ranks_or_raise, rank_share
from ducats.training.predictor import Predictor, check_finite
from ducats.utils.npz_columns import AnyArray

HINT_FIELDS = tuple(column.name for column in fields(AnnotatorHints))  # column order of the rows below


def save_hints(context: RunContext, round_number: int) -> None:
    """Save the model's hints for a request, if the oracle wants them and they do not exist yet."""
    if not getattr(context.components.oracle, "wants_hints", False):
        return
    if not context.per_pixel and context.has_nothing_to_train_on(context.known_targets(round_number - 1)):
        return  # the guesses of an untrained model would only mislead
    run_folder, pool = context.run_folder, context.components.pool
    request, exists = context.on_rank_zero(
        lambda: (load_request(run_folder, round_number), run_folder.load_hints(round_number) is not None)
    )
    if exists or request is None or not 0 < request.n_units <= MAX_LISTED_QUESTIONS:
        return
    predictor = context.round_predictor(round_number)
    hints = (
        pixel_hints(predictor, pool, request, context.label_sizes)
        if context.per_pixel
        else image_hints(predictor, pool, request)
    )
    context.on_rank_zero(lambda: run_folder.save_hints(round_number, hints))


@torch.inference_mode()
def image_hints(predictor: Predictor, pool: Images, request: Request) -> AnnotatorHints:
    """Compute the hints of each requested image, in order; uncertainties are ranked within the pool.

    All processes take part, and all get the hints. The predictor must be the one that the query used.
    """
    return pool_hints(predictor.score_images(pool, ("z",)).z, request.image)


@torch.inference_mode()
def pool_hints(z: Tensor, images: Tensor | None = None) -> AnnotatorHints:
    """Compute the hints of images of the pool, by default of all, from log alpha of the whole pool."""
    probability, guess = expected_probability(z).max(1)
    uncertainty = uncertainties(z)
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
    rows = torch.stack([column.double() for column in columns], 1)
    return _make_hints(rows if images is None else rows[images])


@torch.inference_mode()
def pixel_hints(predictor: Predictor, pool: Images, request: Request, sizes: Tensor) -> AnnotatorHints:
    """Compute the hints of each requested pixel unit, in order; uncertainties are ranked within the image.

    Args:
        predictor: the one that the query used. All processes take part, and all get the hints.
        sizes: ``(N, 2)``, height and width of the labelling grid.
    """
    fabric, blocks = predictor.fabric, _blocks_by_image(request)
    # Split into the query's batches first, then drop some: each image's batch is the same as in the query.
    batches = torch.arange(len(pool)).split(predictor.batch_size)
    own_batches = rank_share([b for b in batches if not blocks.keys().isdisjoint(b.tolist())], fabric)

    def compute_rows() -> Tensor:
        rows = [torch.zeros(0, 1 + len(HINT_FIELDS), dtype=torch.float64)]
        for index, output in predictor.forward(pool, own_batches):
            check_finite(output.z)
            for i, image in enumerate(index.tolist()):
                if image in blocks:
                    rows += _hint_rows(predictor.pixel_logits(output, i, sizes[image]), blocks[image])
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
