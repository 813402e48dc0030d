"""Model snapshots: outputs on a random sample of source and pool, and on the requested samples.

The sample depends on the data only. All runs on the same data use the same sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats import dirichlet
from ducats.columns import Array
from ducats.data.views import View
from ducats.domain import UNLABELLED, Images
from ducats.engine.forward import check_finite, luck_of, said
from ducats.engine.principal import principal
from ducats.engine.processes import gather, share_of, together
from ducats.grid import dense
from ducats.ledger import Request
from ducats.randomness import fork, seed_of
from ducats.rows import Output
from ducats.snapshots import Snapshot
from ducats.units.scene import Scene

PICKED = 1000  # maximum number of picks added to the sample
FEATURES, PICKED_FEATURES = 1000, 300  # maximum number of sampled rows and of picks with features
TOP = 3  # number of classes whose log alpha is stored
LONGEST = 2**32  # upper bound of positions

Known = Callable[[int], Tensor]  # map of an image's pixels: (H, W)


@dataclass(frozen=True)
class Sample:
    """Rows of the source or of the pool, sorted by location: ``(n,)`` each."""

    image: Tensor
    position: Tensor
    sampled: Tensor  # bool; the other rows were added because they were picked
    picked: Tensor  # bool
    wanted: Tensor  # bool: the row's features are stored
    label: Tensor  # class, UNLABELLED or VOID
    total: int  # size of the whole source or pool

    def __len__(self) -> int:
        return len(self.image)


@dataclass(frozen=True)
class Sight:
    """Model outputs on a sample, on the CPU."""

    z: Tensor  # (n, C) log alpha
    features: Tensor  # (f, D), of the rows in `wanted`; D is 0 if the model returns none


def some(count: int, most: int, *names: str | int) -> list[int]:
    """Draw at most ``most`` numbers below ``count``, sorted; the same names give the same numbers."""
    return sorted(Random(seed_of(0, "snapshot", *names)).sample(range(count), min(count, most)))


def spaced(values: Tensor, most: int) -> Tensor:
    """Return at most ``most`` of the values, evenly spaced, in their order.

    >>> spaced(torch.arange(10), 4).tolist(), spaced(torch.arange(3), 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if len(values) <= most:
        return values
    return values[torch.linspace(0, len(values) - 1, most, dtype=torch.float64).round().long()]


def sample_images(name: str, labels: Tensor, most: int, picked: Tensor | None = None) -> Sample:
    """Sample images and add the requested ones.

    Args:
        name: of the domain; seeds the sample.
        labels: ``(N,)``, known label of each image.
        most: number of images to sample.
        picked: ``(Q,)``, requested images, in order.
    """
    drawn = torch.tensor(some(len(labels), most, name), dtype=torch.long)
    asked = torch.zeros(0, dtype=torch.long) if picked is None else picked
    image, sampled, taken, wanted = _merged(name, drawn, asked)
    return Sample(
        image, torch.zeros_like(image), sampled, taken, wanted, labels[image].long(), total=len(labels)
    )


def sample_pixels(
    name: str,
    sizes: Tensor,
    open_: Known,
    known: Known,
    most: int,
    images: int,
    request: Request | None = None,
) -> Sample:
    """Sample pixels of some images, equally many per image, and add the requested pixels of these images.

    Args:
        name: of the domain; seeds the sample.
        sizes: ``(N, 2)``, height and width of each image.
        open_: returns an image's mask of pixels that are not void.
        known: returns an image's known labels.
        most: number of pixels to sample.
        images: number of images to sample from.
        request: the requested pixels.
    """
    looked, areas = some(len(sizes), images, name, "images"), sizes.prod(1)
    drawn, seen = [torch.zeros(0, dtype=torch.long)], 0
    for place, one in enumerate(looked):
        free = open_(one).cpu().flatten().nonzero().squeeze(1)
        seen += len(free)
        share = (place + 1) * most // len(looked) - place * most // len(looked)
        drawn.append(one * LONGEST + free[some(len(free), share, name, "pixels", one)])
    asked = torch.cat([torch.zeros(0, dtype=torch.long), *_asked(request, looked)])
    address, sampled, taken, wanted = _merged(name, torch.cat(drawn), asked)
    image, position = address // LONGEST, address % LONGEST
    labels = [torch.zeros(0, dtype=torch.long)]
    for one in image.unique().tolist():
        labels.append(known(one).cpu().flatten()[position[image == one]].long())
    # Void is read for these images only; the other images are assumed to have the same share.
    share_seen = seen / max(1, int(areas[looked].sum()))
    total = round(share_seen * int(areas.sum()))
    return Sample(image, position, sampled, taken, wanted, torch.cat(labels), total)


def _asked(request: Request | None, looked: Sequence[int]) -> list[Tensor]:
    """Return the requested locations in some images, reading no other images."""
    if request is None:
        return []
    addresses = request.addresses
    runs = addresses.runs_of(np.array(looked, np.int64))
    image: Array = np.repeat(addresses.image[runs], addresses.count[runs])
    return [torch.from_numpy(image * LONGEST + addresses.positions(runs))]


def _merged(name: str, drawn: Tensor, asked: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Merge both sets of locations; return them with masks: sampled, requested, with features."""
    kept = spaced(asked, PICKED)
    address = torch.cat([drawn, kept]).unique()
    featured = drawn.sort().values[some(len(drawn), FEATURES, name, "features")]
    wanted = torch.cat([featured, spaced(kept, PICKED_FEATURES)])
    return address, torch.isin(address, drawn), torch.isin(address, asked), torch.isin(address, wanted)


@torch.inference_mode()
def seen(
    model: nn.Module,
    images: Images,
    sample: Sample,
    *,
    view: View,
    batch_size: int,
    classes: int,
    width: int,
    fabric: Fabric,
    seed: int = 0,
    sizes: Tensor | None = None,
    twice: bool = False,
) -> Sight:
    """Run the model on a sample's images over all processes; every process gets all outputs.

    Args:
        width: number of features, 0 if the model returns none.
        seed: for views with random augmentation.
        sizes: ``(N, 2)``, height and width of the grid that positions refer to; None if samples are images.
        twice: see ``upsampling.upsample``.
    """
    batches = share_of(sample.image.unique().split(batch_size), fabric)
    luck = luck_of(images, view, fork(seed, "scoring"))
    rows = [torch.zeros(0, dtype=torch.long)]
    z, features = [torch.zeros(0, classes)], [torch.zeros(0, width)]

    def look() -> None:
        for index, output in said(model, images, batches, view=view, luck=luck, fabric=fabric):
            check_finite(output.z)
            mine = torch.isin(sample.image, index).nonzero().squeeze(1)
            rows.append(mine)
            if sizes is None:
                z.append(output.z.float().cpu())
                if width:
                    features.append(_of_images(output)[sample.wanted[mine].to(output.z.device)].float().cpu())
                continue
            for place, image in enumerate(index.tolist()):
                of_image = mine[sample.image[mine] == image]
                tall, wide = (int(side) for side in sizes[image])
                one = output._replace(z=output.z[place : place + 1])
                position = sample.position[of_image].to(output.z.device)
                z.append(dense(one, (tall, wide), twice=twice)[0].flatten(1)[:, position].T.float().cpu())
                if width:
                    assert output.features is not None
                    at = position[sample.wanted[of_image].to(position.device)]
                    scene = Scene(None, output.features[place], (tall, wide))
                    column = scene.pixels(("features",), at)["features"]
                    features.append(column.compute(column.position).float().cpu())

    together(fabric, look)
    number = torch.cat(rows)
    order = gather(number, fabric).argsort()
    everything = gather(torch.cat(z), fabric)[order]
    if not width:
        return Sight(everything, torch.zeros(int(sample.wanted.sum()), 0))
    whose = gather(number[sample.wanted[number]], fabric).argsort()
    return Sight(everything, gather(torch.cat(features), fabric)[whose])


def _of_images(output: Output) -> Tensor:
    """Return one feature vector per image, ``(N, D)``; feature maps are averaged."""
    assert output.features is not None
    return output.features if output.features.ndim == 2 else output.features.flatten(2).mean(2)


@torch.inference_mode()
def snapshot(number: int, epoch: int, pool: tuple[Sample, Sight], source: tuple[Sample, Sight]) -> Snapshot:
    """Build a snapshot from the samples of the pool and the source, and the outputs on them.

    Args:
        number: round number, 0 at the end of the run.
        epoch: number of completed epochs.
    """
    (of_pool, _), (of_source, _) = pool, source
    z = torch.cat([sight.z for _, sight in (pool, source)])

    def both(name: str) -> Tensor:
        return torch.cat([getattr(sample, name) for sample in (of_pool, of_source)])

    target = torch.arange(len(z)) < len(of_pool)
    label, picked = both("label"), both("picked")
    order = z.sort(dim=1, descending=True, stable=True)
    top = order.indices[:, :TOP]
    uncertainty = dirichlet.uncertainties(z)
    found = principal(torch.cat([sight.features for _, sight in (pool, source)]))
    told = both("wanted").nonzero().squeeze(1) if len(found.explained) else torch.zeros(0)
    largest = torch.finfo(torch.float16).max
    columns = {
        "target": target,
        "image": both("image"),
        "position": both("position"),
        "sampled": both("sampled"),
        "picked": picked,
        "known": target & (label != UNLABELLED),
        "label": label,
        "guess": top[:, 0],
        "probability": dirichlet.expected_probability(z).amax(1),
        "entropy": dirichlet.entropy(z),
        "u_dis": uncertainty.distribution,
        "u_data": uncertainty.data,
        "log_u_dis": dirichlet.log_distribution_uncertainty(z),
        "log_alpha0": z.logsumexp(1),
        "top": top,
        "log_alpha": order.values[:, :TOP],
        "features_of": told,
        "features": found.scores[: len(told)].clamp(-largest, largest),
        "explained": found.explained,
        "z_of": picked.nonzero().squeeze(1),
        "z": z[picked],
    }
    arrays = {name: column.numpy() for name, column in columns.items()}
    return Snapshot(number, epoch, of_pool.total, of_source.total, **arrays)
