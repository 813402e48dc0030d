"""Scoring and selection of images: compute the columns that a query needs, then run the query."""

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.acquisition.criteria import PROBE_COLUMNS, compute_columns
from ducats.acquisition.queries import QuerySpec
from ducats.acquisition.samples import QueryContext, SampleTable, run_query
from ducats.data.domain import UNLABELLED, Images
from ducats.ledger import Request
from ducats.settings import View
from ducats.training.distributed import all_gather_rows, rank_share
from ducats.training.forward import ExtraColumnsFn, predict_columns, sample_aug_params
from ducats.utils.randomness import make_generator


@torch.inference_mode()
def score_images(
    model: nn.Module,
    images: Images,
    needs: tuple[str, ...],
    *,
    view: View,
    batch_size: int,
    seed: int,
    fabric: Fabric,
    extra_columns: ExtraColumnsFn | None = None,
) -> SampleTable:
    """Return one row per image with the columns in ``needs``, in image order, on the CPU.

    Images are split into batches before the batches are divided among processes. The values, and hence the
    selection, do not depend on the number of processes. If ``needs`` is empty, there is no forward pass.

    Args:
        needs: ``z``, ``features``, columns of probes, and names of criteria.
        seed: for views with random augmentation.
        extra_columns: computes the probes' columns; None if no probe is needed.
    """
    all_images = torch.arange(len(images))
    position = torch.zeros_like(all_images)
    if not needs:
        return SampleTable(all_images, position, {})
    batches = rank_share(all_images.split(batch_size), fabric)
    aug_params = sample_aug_params(images, view, make_generator(seed, "scoring"))
    model_columns = ("z", *(name for name in needs if name == "features" or name in PROBE_COLUMNS))
    indices, collected = [], {name: [] for name in model_columns}  # type: tuple[list[Tensor], dict[str, list[Tensor]]]
    kwargs: dict[str, Any] = {"view": view, "fabric": fabric, "extra_columns": extra_columns}
    for index, batch_columns in predict_columns(
        model, images, batches, aug_params=aug_params, needs=model_columns, **kwargs
    ):
        indices.append(index)
        for name in model_columns:
            collected[name].append(batch_columns[name])
    if fabric.world_size == 1:
        all_columns = {name: torch.cat(tensors) for name, tensors in collected.items()}
    else:
        row_shapes = {name: _row_shape(model, images, name, **kwargs) for name in model_columns}
        own_indices = torch.cat(indices) if indices else all_images[:0]
        order = all_gather_rows(own_indices, fabric).argsort()
        all_columns = {}
        for name, tensors in collected.items():
            own_values = torch.cat(tensors) if tensors else torch.zeros(0, *row_shapes[name])
            all_columns[name] = all_gather_rows(own_values, fabric)[order]
    columns = compute_columns(all_columns["z"], all_columns.get("features"), needs, all_columns)
    return SampleTable(all_images, position, columns)


def select(
    query: QuerySpec,
    samples: SampleTable,
    known_labels: Tensor,
    budget: int,
    round_number: int,
    generator: torch.Generator,
    *,
    source: SampleTable | None = None,
    head: Tensor | None = None,
) -> Request:
    """Run a query on the unlabelled images and validate its picks.

    Args:
        samples: the whole pool.
        known_labels: ``(N,)``, known label of each image, or ``UNLABELLED``.
        budget: number of images to select; fewer if fewer are unlabelled.
        round_number: counts from 1.
        generator: the query's only source of randomness.
        source: the source images, if the query reads them.
        head: the last layer's weights, if the query reads them.
    """
    candidates = samples[(known_labels == UNLABELLED).nonzero().squeeze(1)]
    labelled = samples[(known_labels >= 0).nonzero().squeeze(1)]
    context = QueryContext(
        candidates, labelled, min(budget, len(candidates)), generator, source, head, len(samples)
    )
    picks = run_query(query.fn, context)
    return Request(round_number, candidates.image[picks], candidates.position[picks])


def _row_shape(
    model: nn.Module,
    images: Images,
    name: str,
    *,
    view: View,
    fabric: Fabric,
    extra_columns: ExtraColumnsFn | None,
) -> torch.Size:
    """Return the shape of one row of a column; a process without a batch needs it to join the gather."""
    first_index = torch.zeros(1, dtype=torch.long)
    aug_params = sample_aug_params(images, view, make_generator(0, "width"))
    kwargs: dict[str, Any] = {"view": view, "fabric": fabric, "extra_columns": extra_columns}
    (_, columns), *_ = predict_columns(
        model, images, [first_index], aug_params=aug_params, needs=(name,), **kwargs
    )
    return columns[name].shape[1:]
