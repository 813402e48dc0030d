"""Validate all names and parameters of a config before any image is read."""

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ducats import config as settings
from ducats.answers.rules import ruling
from ducats.assemble.making import check_oracle, make_objective, make_query, make_schedule, make_task
from ducats.criteria import columns_of
from ducats.data import DATASETS
from ducats.domain import UNLABELLED, VOID
from ducats.engine.schedules import SCHEDULES
from ducats.lookup import bind, build, look_up
from ducats.models import CHECK, MODELS
from ducats.objectives import (
    OBJECTIVES,
    Batch,
    Beside,
    Labelled,
    Remembered,
    Training,
)
from ducats.queries import QUERIES, Strategy
from ducats.randomness import global_seed
from ducats.rows import Output, Rows, Slate, name_of
from ducats.units import spend, summary


def knobs_of(config: settings.Config) -> dict[str, str]:
    """Return the parameters of each component in a config, with their defaults."""
    query = make_query(config)
    parts: dict[str, Any] = {
        "data": look_up("data set", DATASETS, config.data.name),
        "model": look_up("model", MODELS, config.model.name),
        "objective": make_objective(config),
        "query": query.query if isinstance(query, Strategy) else query,
        "train.schedule": look_up("schedule", SCHEDULES, config.train.schedule.name),
    }
    knobs = {}
    for name, part in parts.items():
        if isinstance(part, Training):
            own, signature = part.loss, part.signature
        else:
            own, signature = part, inspect.signature(part.func if isinstance(part, partial) else part)
        keywords = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        given = ", ".join(
            f"{p.name}" if p.default is p.empty else f"{p.name}={p.default!r}" for p in keywords
        )
        knobs[f"{name}.knobs"] = f"parameters of {name_of(own)}: {given or 'none'}"
    if config.oracle.name in ("auto", "people"):
        given = ", ".join(f"{p.name}={p.default!r}" for p in inspect.signature(ruling).parameters.values())
        knobs["oracle.knobs"] = f"parameters of people: {given}"
    return knobs


def check_names(config: settings.Config, *, begun: bool = False) -> None:
    """Resolve every name, check every parameter, and call query, objective and schedule on dummy input.

    A run that has a checkpoint (``begun``) does not need its pretrained weights, so they are not checked.
    """
    bind("data set", config.data.name, look_up("data set", DATASETS, config.data.name), 0, config.data.knobs)
    bind("model", config.model.name, look_up("model", MODELS, config.model.name), 0, config.model.knobs)
    if config.model.name in CHECK and not begun:
        build("model", config.model, partial(CHECK[config.model.name], **config.model.knobs))
    # Only built-in queries and objectives are called: user code may reject such small inputs.
    query, objective, schedule = make_query(config), make_objective(config), make_schedule(config, 10**6)
    if config.query.name in QUERIES and isinstance(query, Strategy):
        build("query", config.query, partial(_try_query, config, query))
    if config.objective.name in OBJECTIVES:
        build("objective", config.objective, partial(_try_objective, config, objective))
    check_oracle(config.oracle)
    build("schedule", config.train.schedule, lambda: [schedule(step) + 0.0 for step in (0, 1, 10**6)])


def _try_query(config: settings.Config, query: Strategy) -> None:
    """Run a query on a few all-zero samples."""
    generator = torch.Generator().manual_seed(0)
    z, features, head = torch.zeros(3, 2), torch.zeros(3, 4), torch.zeros(2, 4) if query.head else None
    told = {
        "domain": torch.full((3,), 0.5),
        "critic": torch.zeros(3),
        "committee": torch.full((3, 2, 2), 0.5),
    }
    of_map = {
        name: column[0][..., None, None].expand(*column.shape[1:], 2, 3) for name, column in told.items()
    }
    if config.task.name == "segmentation" and config.task.bought == "image":
        target = torch.full((4, 6), UNLABELLED, dtype=torch.int8)
        one = summary(torch.zeros(2, 4, 6), torch.zeros(4, 2, 3), target, query.needs, of_map)
        columns = {name: torch.cat([column] * 3) for name, column in one.items()}
    elif config.task.name == "classification":
        columns = columns_of(z, features, query.needs, told)
    if config.task.bought == "image":
        where = torch.arange(3)
        rows = Rows(where, torch.zeros_like(where), columns)
        source = None
        if query.source and config.task.name == "classification":
            source = Rows(where, torch.zeros_like(where), columns_of(z, features, query.source, told))
        elif query.source:
            one = summary(torch.zeros(2, 4, 6), torch.zeros(4, 2, 3), target, query.source, of_map)
            found = {name: torch.cat([column] * 3) for name, column in one.items()}
            source = Rows(where, torch.zeros_like(where), found)
        query.query(Slate(rows, rows[where[:1]], 1, generator, source, head))
        return
    target = torch.full((4, 6), UNLABELLED, dtype=torch.int8)
    maps, unit = torch.zeros(2, 4, 6), make_task(config).unit
    pixels = torch.zeros(3, 4, 6, dtype=torch.uint8)
    spend(
        query,
        unit,
        z=maps,
        features=maps,
        target=target,
        image=0,
        pixels=pixels,
        budget=3,
        generator=generator,
        told=of_map,
        head=head,
    )


class _Blank(nn.Module):
    """A model that returns zeros, per image or per pixel."""

    def __init__(self, pixels: bool) -> None:
        super().__init__()
        self.network, self.pixels = nn.Linear(4, 2), pixels

    def forward(self, images: Tensor) -> Output:
        """Return zeros for two classes and four features."""
        grid = (1, 1) if self.pixels else ()
        z, features = images.new_zeros(len(images), 2, *grid), images.new_zeros(len(images), 4, *grid)
        return Output(z, features, (2, 2) if self.pixels else None)


def _try_objective(config: settings.Config, training: Training) -> None:
    """Compute an objective on a few all-zero images."""
    images, pixels = torch.zeros(3, 1, 2, 2), config.task.name == "segmentation"
    model, companion = _Blank(pixels), None
    with global_seed(0, "a try"):
        if training.companion is not None:
            companion = training.companion(Beside(model, classes=2, features=4, pool=3, pixels=pixels))
        objective = training.with_companion(companion)
        if not pixels:
            known = Labelled(images, torch.tensor([0, 1, 1]))
            objective(Remembered(model), Batch(known, known, images, strong=images, certain=known))
            return
        maps = torch.tensor([[0, 1], [UNLABELLED, VOID]], dtype=torch.int8).expand(3, 2, 2)
        objective(Remembered(model), Batch(Labelled(images, maps), None, None, Labelled(images, maps)))
