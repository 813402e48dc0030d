"""Which images and pixels are drawn for the audit: a uniform sample of those that no query has selected."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED
from ducats.ledger import Ledger, PixelLabels, Request, RequestWriter, load_request
from ducats.run.pixel_selection import KnownLabelsFn
from ducats.runfolder.label_files import AuditMarks
from ducats.runfolder.pixel_runs import PixelRuns
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.npz_columns import AnyArray
from ducats.utils.randomness import make_generator

PositionsFn = Callable[[int], AnyArray]  # positions in an image
BLOCK = 4096  # pixels of the random order that are drawn together


def unanswered_images(run_folder: RunFolder, ledger: Ledger, n_rounds: int) -> Tensor:
    """Return a mask of the images that a query selected, but that nobody labelled in time."""
    selected = torch.zeros(len(ledger.keys), dtype=torch.bool)
    for round_number in range(1, n_rounds + 1):
        request = load_request(run_folder, round_number)
        if request is not None:
            selected[request.picks.image] = True
    return selected & (ledger.targets(n_rounds) == UNLABELLED)


def add_audit_images(
    request: Request, ledger: Ledger, count: int, seed: int, unanswered: Tensor | None = None
) -> Request:
    """Add images for the audit to what the query selected, mixed so that annotators cannot tell.

    The query does not know the audit. If it selects an audit image of an earlier round, whose label is known,
    that image is released from the audit, and another one is drawn. So the audit is at all times a uniform
    sample of the images that the query has not selected: the first ones of them in a random order of the
    pool, which depends on the seed only. Runs of other methods with this seed therefore share most of it.

    Args:
        unanswered: mask of images that the query selected in earlier rounds, and that nobody labelled.
    """
    audited = ledger.audit_labels() != UNLABELLED
    if not count and not bool(audited.any()):
        return request
    picks = request.image
    is_released = audited[picks]
    is_free = (ledger.targets() == UNLABELLED) & ~audited
    is_free[picks] = False
    if unanswered is not None:
        is_free &= ~unanswered
    pool_order = torch.randperm(len(is_free), generator=make_generator(seed, "audit"))
    drawn = pool_order[is_free[pool_order]][: count + int(is_released.sum()) if count else 0]
    image = torch.cat([picks[~is_released], drawn])
    order = torch.randperm(len(image), generator=make_generator(seed, "order of questions", request.round))
    is_audit = torch.arange(len(image)) >= len(image) - len(drawn)
    released = picks[is_released].numpy()
    marks = AuditMarks(np.flatnonzero(is_audit[order].numpy()), released, np.zeros_like(released))
    return Request(request.round, image[order], torch.zeros_like(image), marks=marks)


def random_pixels(areas: Tensor, seed: int) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Yield image and position of all pixels of a pool in a random order, block by block.

    It is the order in which independent uniform draws first meet each pixel, so all orders are equally
    likely, and nothing in memory is as long as the pool.

    Args:
        areas: number of pixels of each image.
    """
    sizes, ends = areas.numpy(), areas.cumsum(0).numpy()
    generator, seen, total = make_generator(seed, "audit"), np.zeros(0, np.int64), int(ends[-1])
    while len(seen) < total:
        drawn = torch.randint(total, (BLOCK,), generator=generator).numpy()
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        drawn = drawn[~np.isin(drawn, seen)]
        seen = np.concatenate([seen, drawn])
        image = np.searchsorted(ends, drawn, "right")
        yield image, drawn - (ends - sizes)[image]


def unanswered_pixels(run_folder: RunFolder, ledger: Ledger, n_rounds: int) -> PositionsFn:
    """Return a function to the pixels of an image that a query selected, but that nobody labelled in time."""
    loaded = (load_request(run_folder, number) for number in range(1, n_rounds + 1))
    requests = [request for request in loaded if request is not None]
    if sum(map(len, requests)) == ledger.spent(n_rounds):
        return lambda _: np.zeros(0, np.int64)

    def positions_in(image: int) -> AnyArray:
        found = [np.zeros(0, np.int64)]
        for request in requests:
            runs = request.pixel_runs.runs_of_images(np.array([image]))
            audit_image, audit_position = request.pixel_runs.locations_at(request.marks.index)
            position = request.pixel_runs.positions(runs)
            found.append(position[~np.isin(position, audit_position[audit_image == image])])
        labelled, _ = ledger.image_label_arrays(image, n_rounds, with_audit=True)
        return np.setdiff1d(np.concatenate(found), labelled)

    return positions_in


def write_with_audit(
    writer: RequestWriter,
    picks: PixelRuns,
    *,
    count: int,
    areas: Tensor,
    seed: int,
    audited: PixelLabels,
    known_labels_of: KnownLabelsFn,
    unanswered_of: PositionsFn,
) -> None:
    """Write a request of the pixels that the query selected and of pixels for the audit, mixed.

    The query does not know the audit. If it selects an audit pixel of an earlier round, whose label is known,
    that pixel is released from the audit and another one is drawn. So the audit is at all times a uniform
    sample of the pixels that the query has not selected: the first ones of them in a random order of all
    pixels, which depends on the seed only.

    Args:
        picks: what the query selected, in units.
        count: number of additional audit pixels.
        areas: number of pixels of each image.
        audited: the audit so far.
        known_labels_of: without the audit.
        unanswered_of: positions that the query selected in earlier rounds, and that nobody labelled.
    """

    def picks_in(image: int) -> AnyArray:
        return picks.positions(picks.runs_of_images(np.array([image])))

    is_released = np.zeros(len(audited.image), bool)
    for image in np.unique(audited.image).tolist():
        rows = audited.image == image
        is_released[rows] = np.isin(audited.position[rows], picks_in(image))

    def is_free(image: int, position: AnyArray) -> AnyArray:
        taken = [picks_in(image), unanswered_of(image), audited.position[audited.image == image]]
        is_open = known_labels_of(image).flatten().numpy()[position] == UNLABELLED
        free: AnyArray = is_open & ~np.isin(position, np.concatenate(taken))
        return free

    needed = count + int(is_released.sum()) if count else 0
    drawn_image, drawn_position = _draw(random_pixels(areas, seed), needed, is_free)
    index = [np.zeros(0, np.int64)]
    for image in np.union1d(picks.image, drawn_image).tolist():
        released = audited.position[is_released & (audited.image == image)]
        runs = picks.runs_of_images(np.array([image]))
        position, unit_sizes = _without(picks.positions(runs), picks.unit_sizes(runs)[0], released)
        generator = make_generator(seed, "order of questions", writer.round, image)
        position, unit_sizes, is_audit = _mix(
            position, unit_sizes, drawn_position[drawn_image == image], generator
        )
        index.append(len(writer) + np.flatnonzero(is_audit))
        writer.add(image, torch.from_numpy(position), torch.from_numpy(unit_sizes))
    writer.marks = AuditMarks(
        np.concatenate(index), audited.image[is_released], audited.position[is_released]
    )


def _draw(
    order: Iterator[tuple[AnyArray, AnyArray]], count: int, is_free: Callable[[int, AnyArray], AnyArray]
) -> tuple[AnyArray, AnyArray]:
    """Return image and position of the first free pixels of an order; fewer if fewer are free."""
    chosen = [np.zeros((2, 0), np.int64)]
    remaining = count
    while remaining and (block := next(order, None)) is not None:
        images, positions = block
        start = 0
        while remaining and start < len(images):
            part = slice(start, start + remaining + 16)  # reads few label maps if few pixels are missing
            image, position = images[part], positions[part]
            free = np.zeros(len(image), bool)
            for one in np.unique(image).tolist():
                rows = image == one
                free[rows] = is_free(one, position[rows])
            found = np.flatnonzero(free)[:remaining]
            chosen.append(np.stack([image[found], position[found]]))
            remaining, start = remaining - len(found), part.stop
    image, position = np.concatenate(chosen, 1)
    return image, position


def _without(position: AnyArray, unit_sizes: AnyArray, released: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return units without some positions; drop those that are empty."""
    kept = ~np.isin(position, released)
    owner = np.repeat(np.arange(len(unit_sizes)), unit_sizes)
    sizes = np.bincount(owner[kept], minlength=len(unit_sizes))
    return position[kept], sizes[sizes > 0]


def _mix(
    position: AnyArray, unit_sizes: AnyArray, audit: AnyArray, generator: torch.Generator
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Insert audit pixels among the units of an image at random; also return their mask.

    >>> mixed = _mix(np.array([4, 5]), np.array([2]), np.array([9]), make_generator(0))
    >>> [column.tolist() for column in mixed]
    [[4, 5, 9], [2, 1], [False, False, True]]
    """
    sizes = np.concatenate([unit_sizes, np.ones(len(audit), np.int64)])
    is_audit = np.zeros(len(sizes), bool)
    is_audit[torch.randperm(len(sizes), generator=generator)[: len(audit)].numpy()] = True
    rank = np.empty(len(sizes), np.int64)  # of the units, then of the audit
    rank[: len(unit_sizes)], rank[len(unit_sizes) :] = np.flatnonzero(~is_audit), np.flatnonzero(is_audit)
    order = np.argsort(np.repeat(rank, sizes), kind="stable")
    return np.concatenate([position, audit])[order], sizes[np.argsort(rank)], (order >= len(position))
