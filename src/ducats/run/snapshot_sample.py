"""Model snapshots: outputs on a random sample of source and pool, and on the requested samples.

The sample depends on the data only. All runs on the same data use the same sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor

from ducats import dirichlet
from ducats.acquisition.units.pixel_columns import PixelColumns
from ducats.data.domain import UNLABELLED, Images
from ducats.ledger import Request
from ducats.models.output import Output
from ducats.run.pca import pca
from ducats.runfolder.snapshot_files import Snapshot
from ducats.training.distributed import all_gather_rows, all_ranks_or_raise
from ducats.training.predictor import Predictor, check_finite
from ducats.utils.npz_columns import AnyArray
from ducats.utils.randomness import derive_seed

MAX_PICKS = 1000  # maximum number of picks added to the sample
MAX_SAMPLE_FEATURES = 1000  # maximum number of sampled rows with features
MAX_PICK_FEATURES = 300  # maximum number of picks with features
N_TOP_CLASSES = 3  # number of classes whose log alpha is stored
_POSITION_BASE = 2**32  # upper bound of positions

PixelMapFn = Callable[[int], Tensor]  # map of an image's pixels: (H, W)


@dataclass(frozen=True)
class SnapshotSample:
    """Rows of the source or of the pool, sorted by location: ``(n,)`` each."""

    image: Tensor
    position: Tensor
    sampled: Tensor  # bool; the other rows were added because they were picked
    picked: Tensor  # bool
    with_features: Tensor  # bool: the row's features are stored
    label: Tensor  # class, UNLABELLED or VOID
    total: int  # size of the whole source or pool

    def __len__(self) -> int:
        return len(self.image)


@dataclass(frozen=True)
class SampleOutputs:
    """Model outputs on a sample, on the CPU."""

    z: Tensor  # (n, C) log alpha
    features: Tensor  # (f, D), of the rows in `with_features`; D is 0 if the model returns none


def random_indices(count: int, max_count: int, *names: str | int) -> list[int]:
    """Draw at most ``max_count`` numbers below ``count``, sorted; the same names give the same numbers."""
    return sorted(Random(derive_seed(0, "snapshot", *names)).sample(range(count), min(count, max_count)))


def evenly_spaced(values: Tensor, max_count: int) -> Tensor:
    """Return at most ``max_count`` of the values, evenly spaced, in their order.

    >>> evenly_spaced(torch.arange(10), 4).tolist(), evenly_spaced(torch.arange(3), 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if len(values) <= max_count:
        return values
    return values[torch.linspace(0, len(values) - 1, max_count, dtype=torch.float64).round().long()]


def sample_images(name: str, labels: Tensor, max_count: int, picked: Tensor | None = None) -> SnapshotSample:
    """Sample images and add the requested ones.

    Args:
        name: of the domain; seeds the sample.
        labels: ``(N,)``, known label of each image.
        picked: ``(Q,)``, requested images, in order.
    """
    sampled_images = torch.tensor(random_indices(len(labels), max_count, name), dtype=torch.long)
    requested = torch.zeros(0, dtype=torch.long) if picked is None else picked
    image, sampled, is_picked, with_features = _merge_locations(name, sampled_images, requested)
    return SnapshotSample(
        image,
        torch.zeros_like(image),
        sampled,
        is_picked,
        with_features,
        labels[image].long(),
        total=len(labels),
    )


def sample_pixels(
    name: str,
    sizes: Tensor,
    valid_mask_of: PixelMapFn,
    known_labels_of: PixelMapFn,
    max_count: int,
    max_images: int,
    request: Request | None = None,
) -> SnapshotSample:
    """Sample pixels of some images, equally many per image, and add the requested pixels of these images.

    Args:
        name: of the domain; seeds the sample.
        sizes: ``(N, 2)``, height and width of each image.
        valid_mask_of: returns an image's mask of pixels that are not void.
    """
    image_indices, areas = random_indices(len(sizes), max_images, name, "images"), sizes.prod(1)
    sampled_locations, n_valid = [torch.zeros(0, dtype=torch.long)], 0
    for i, image_index in enumerate(image_indices):
        valid = valid_mask_of(image_index).cpu().flatten().nonzero().squeeze(1)
        n_valid += len(valid)
        share = (i + 1) * max_count // len(image_indices) - i * max_count // len(image_indices)
        sampled_locations.append(
            image_index * _POSITION_BASE
            + valid[random_indices(len(valid), share, name, "pixels", image_index)]
        )
    requested = torch.cat([torch.zeros(0, dtype=torch.long), *_requested_locations(request, image_indices)])
    location, sampled, is_picked, with_features = _merge_locations(
        name, torch.cat(sampled_locations), requested
    )
    image, position = location // _POSITION_BASE, location % _POSITION_BASE
    labels = [torch.zeros(0, dtype=torch.long)]
    for image_index in image.unique().tolist():
        labels.append(known_labels_of(image_index).cpu().flatten()[position[image == image_index]].long())
    # Void is read for these images only; the other images are assumed to have the same share.
    valid_share = n_valid / max(1, int(areas[image_indices].sum()))
    total = round(valid_share * int(areas.sum()))
    return SnapshotSample(image, position, sampled, is_picked, with_features, torch.cat(labels), total)


def _requested_locations(request: Request | None, image_indices: Sequence[int]) -> list[Tensor]:
    """Return the locations in some images that the query selected, reading no other images."""
    if request is None:
        return []
    pixel_runs = request.pixel_runs
    runs = pixel_runs.runs_of_images(np.array(image_indices, np.int64))
    image: AnyArray = np.repeat(pixel_runs.image[runs], pixel_runs.count[runs])
    index = pixel_runs.location_indices(runs)
    index = np.arange(index.start, index.stop) if isinstance(index, slice) else index
    is_pick = ~np.isin(index, request.marks.index)
    return [torch.from_numpy((image * _POSITION_BASE + pixel_runs.positions(runs))[is_pick])]


def _merge_locations(name: str, sampled: Tensor, requested: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Merge both sets of locations; return them with masks: sampled, requested, with features."""
    picks = evenly_spaced(requested, MAX_PICKS)
    location = torch.cat([sampled, picks]).unique()
    featured = sampled.sort().values[random_indices(len(sampled), MAX_SAMPLE_FEATURES, name, "features")]
    with_features = torch.cat([featured, evenly_spaced(picks, MAX_PICK_FEATURES)])
    return (
        location,
        torch.isin(location, sampled),
        torch.isin(location, requested),
        torch.isin(location, with_features),
    )


@torch.inference_mode()
def predict_sample(
    predictor: Predictor,
    images: Images,
    sample: SnapshotSample,
    *,
    classes: int,
    n_features: int,
    sizes: Tensor | None = None,
) -> SampleOutputs:
    """Run the model on a sample's images over all processes; every process gets all outputs.

    Args:
        n_features: number of features, 0 if the model returns none.
        sizes: ``(N, 2)``, height and width of the grid that positions refer to; None if samples are images.
    """
    fabric = predictor.fabric
    batches = predictor.share(sample.image.unique())
    rows = [torch.zeros(0, dtype=torch.long)]
    z, features = [torch.zeros(0, classes)], [torch.zeros(0, n_features)]

    def run_batches() -> None:
        for index, output in predictor.forward(images, batches):
            check_finite(output.z)
            row_index = torch.isin(sample.image, index).nonzero().squeeze(1)
            rows.append(row_index)
            if sizes is None:
                z.append(output.z.float().cpu())
                if n_features:
                    features.append(
                        _image_features(output)[sample.with_features[row_index].to(output.z.device)]
                        .float()
                        .cpu()
                    )
                continue
            for i, image in enumerate(index.tolist()):
                of_image = row_index[sample.image[row_index] == image]
                size = (int(sizes[image, 0]), int(sizes[image, 1]))
                position = sample.position[of_image].to(output.z.device)
                pixel_z = predictor.pixel_logits(output, i, size)[0].flatten(1)
                z.append(pixel_z[:, position].T.float().cpu())
                if n_features:
                    assert output.features is not None
                    feature_position = position[sample.with_features[of_image].to(position.device)]
                    pixel_columns = PixelColumns(None, output.features[i], size)
                    column = pixel_columns.for_pixels(("features",), feature_position)["features"]
                    features.append(column.compute(column.position).float().cpu())

    all_ranks_or_raise(fabric, run_batches)
    row = torch.cat(rows)
    order = all_gather_rows(row, fabric).argsort()
    all_z = all_gather_rows(torch.cat(z), fabric)[order]
    if not n_features:
        return SampleOutputs(all_z, torch.zeros(int(sample.with_features.sum()), 0))
    feature_order = all_gather_rows(row[sample.with_features[row]], fabric).argsort()
    return SampleOutputs(all_z, all_gather_rows(torch.cat(features), fabric)[feature_order])


def _image_features(output: Output) -> Tensor:
    """Return one feature vector per image, ``(N, D)``; feature maps are averaged."""
    assert output.features is not None
    return output.features if output.features.ndim == 2 else output.features.flatten(2).mean(2)


@torch.inference_mode()
def make_snapshot(
    round_number: int,
    epoch: int,
    pool: tuple[SnapshotSample, SampleOutputs],
    source: tuple[SnapshotSample, SampleOutputs],
) -> Snapshot:
    """Build a snapshot from the samples of the pool and the source, and the outputs on them."""
    (pool_sample, _), (source_sample, _) = pool, source
    z = torch.cat([outputs.z for _, outputs in (pool, source)])

    def both(name: str) -> Tensor:
        return torch.cat([getattr(sample, name) for sample in (pool_sample, source_sample)])

    target = torch.arange(len(z)) < len(pool_sample)
    label, picked = both("label"), both("picked")
    order = z.sort(dim=1, descending=True, stable=True)
    top = order.indices[:, :N_TOP_CLASSES]
    uncertainty = dirichlet.uncertainties(z)
    components = pca(torch.cat([outputs.features for _, outputs in (pool, source)]))
    feature_rows = (
        both("with_features").nonzero().squeeze(1)
        if len(components.explained_variance_ratio)
        else torch.zeros(0)
    )
    float16_max = torch.finfo(torch.float16).max
    columns = {
        "is_target": target,
        "image": both("image"),
        "position": both("position"),
        "sampled": both("sampled"),
        "picked": picked,
        "is_labelled": target & (label != UNLABELLED),
        "label": label,
        "predicted": top[:, 0],
        "probability": dirichlet.expected_probability(z).amax(1),
        "entropy": dirichlet.entropy(z),
        "u_dis": uncertainty.distribution,
        "u_data": uncertainty.data,
        "log_u_dis": dirichlet.log_distribution_uncertainty(z),
        "log_alpha0": z.logsumexp(1),
        "top_classes": top,
        "log_alpha": order.values[:, :N_TOP_CLASSES],
        "feature_rows": feature_rows,
        "features": components.scores[: len(feature_rows)].clamp(-float16_max, float16_max),
        "explained_variance_ratio": components.explained_variance_ratio,
        "z_rows": picked.nonzero().squeeze(1),
        "z": z[picked],
    }
    arrays = {name: column.numpy() for name, column in columns.items()}
    return Snapshot(round_number, epoch, pool_sample.total, source_sample.total, **arrays)
