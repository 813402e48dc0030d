"""Scoring and selection of images: compute the columns that a query needs, then run the query."""

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.criteria import TOLD, columns_of
from ducats.data.views import View
from ducats.domain import UNLABELLED, Images
from ducats.engine.forward import Tell, luck_of, outputs
from ducats.engine.processes import gather, share_of
from ducats.ledger import Request
from ducats.queries import QuerySpec
from ducats.randomness import fork
from ducats.rows import Rows, Slate, ask


@torch.inference_mode()
def table(
    model: nn.Module,
    images: Images,
    needs: tuple[str, ...],
    *,
    view: View,
    batch_size: int,
    seed: int,
    fabric: Fabric,
    tell: Tell | None = None,
) -> Rows:
    """Return one row per image with the columns in ``needs``, in image order, on the CPU.

    Images are split into batches before the batches are divided among processes. The values, and hence the
    selection, do not depend on the number of processes. If ``needs`` is empty, there is no forward pass.

    Args:
        needs: ``z``, ``features``, columns of probes, and names of criteria.
        seed: for views with random augmentation.
        tell: computes the probes' columns; None if no probe is needed.
    """
    everyone = torch.arange(len(images))
    position = torch.zeros_like(everyone)
    if not needs:
        return Rows(everyone, position, {})
    batches = share_of(everyone.split(batch_size), fabric)
    luck = luck_of(images, view, fork(seed, "scoring"))
    raw = ("z", *(name for name in needs if name == "features" or name in TOLD))
    seen, found = [], {name: [] for name in raw}  # type: tuple[list[Tensor], dict[str, list[Tensor]]]
    how: dict[str, Any] = {"view": view, "fabric": fabric, "tell": tell}
    for index, said in outputs(model, images, batches, luck=luck, needs=raw, **how):
        seen.append(index)
        for name in raw:
            found[name].append(said[name])
    if fabric.world_size == 1:
        said_of_all = {name: torch.cat(parts) for name, parts in found.items()}
    else:
        width = {name: _width(model, images, name, **how) for name in raw}
        mine = torch.cat(seen) if seen else everyone[:0]
        order = gather(mine, fabric).argsort()
        said_of_all = {}
        for name, parts in found.items():
            own = torch.cat(parts) if parts else torch.zeros(0, *width[name])
            said_of_all[name] = gather(own, fabric)[order]
    columns = columns_of(said_of_all["z"], said_of_all.get("features"), needs, said_of_all)
    return Rows(everyone, position, columns)


def choose(
    strategy: QuerySpec,
    rows: Rows,
    targets: Tensor,
    budget: int,
    round_number: int,
    generator: torch.Generator,
    *,
    source: Rows | None = None,
    head: Tensor | None = None,
) -> Request:
    """Run a query on the unlabelled images and validate its picks.

    Args:
        rows: the whole pool.
        targets: ``(N,)``, known label of each image, or ``UNLABELLED``.
        budget: number of images to select; fewer if fewer are unlabelled.
        round_number: counts from 1.
        generator: the query's only source of randomness.
        source: the source images, if the query reads them.
        head: the last layer's weights, if the query reads them.
    """
    candidates = rows[(targets == UNLABELLED).nonzero().squeeze(1)]
    labelled = rows[(targets >= 0).nonzero().squeeze(1)]
    slate = Slate(candidates, labelled, min(budget, len(candidates)), generator, source, head, len(rows))
    picks = ask(strategy.fn, slate)
    return Request(round_number, candidates.image[picks], candidates.position[picks])


def _width(
    model: nn.Module, images: Images, name: str, *, view: View, fabric: Fabric, tell: Tell | None
) -> torch.Size:
    """Return the shape of one row of a column; a process without a batch needs it to join the gather."""
    one, luck = torch.zeros(1, dtype=torch.long), luck_of(images, view, fork(0, "width"))
    how: dict[str, Any] = {"view": view, "fabric": fabric, "tell": tell}
    (_, said), *_ = outputs(model, images, [one], luck=luck, needs=(name,), **how)
    return said[name].shape[1:]
