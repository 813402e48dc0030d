"""Validate all names and parameters of a config before any image is read."""

import inspect
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ducats import config as settings
from ducats.acquisition.criteria import PROBE_COLUMNS, compute_columns
from ducats.acquisition.queries import QUERIES, QuerySpec
from ducats.acquisition.samples import QueryContext, SampleTable, function_name
from ducats.acquisition.units import image_columns, select_in_image
from ducats.annotation.rules import make_rules
from ducats.data import DATASETS, resolve_dataset
from ducats.data.domain import UNLABELLED, VOID
from ducats.models import MODELS, resolve_model
from ducats.models.output import Output
from ducats.objectives import (
    OBJECTIVES,
    AuxiliaryContext,
    Batch,
    CachedForward,
    LabelledImages,
    ObjectiveSpec,
)
from ducats.run.factory.builders import check_oracle, make_objective, make_query, make_schedule, make_task
from ducats.training.schedules import SCHEDULES
from ducats.utils.randomness import global_seed
from ducats.utils.registry import bind_params, build_component, resolve


def describe_params(config: settings.Config) -> dict[str, str]:
    """Return the parameters of each component in a config, with their defaults."""
    components: dict[str, Any] = {
        "data": resolve_dataset(config.data.name).load,
        "model": resolve_model(config.model.name).build,
        "objective": make_objective(config),
        "query": make_query(config).fn,
        "train.schedule": resolve("schedule", SCHEDULES, config.train.schedule.name),
    }
    descriptions = {}
    for name, component in components.items():
        if isinstance(component, ObjectiveSpec):
            function, signature = component.fn, component.signature
        else:
            function, signature = (
                component,
                inspect.signature(component.func if isinstance(component, partial) else component),
            )
        keywords = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        text = ", ".join(f"{p.name}" if p.default is p.empty else f"{p.name}={p.default!r}" for p in keywords)
        descriptions[f"{name}.name"] = f"{', '.join(REGISTRIES[name])}, or `package.module:function`"
        descriptions[f"{name}.params"] = f"parameters of {function_name(function)}: {text or 'none'}"
    if config.oracle.name in ("auto", "human"):
        text = ", ".join(f"{p.name}={p.default!r}" for p in inspect.signature(make_rules).parameters.values())
        descriptions["oracle.params"] = f"parameters of human: {text}"
    return descriptions


REGISTRIES: Mapping[str, Collection[str]] = {
    "data": DATASETS,
    "model": MODELS,
    "objective": OBJECTIVES,
    "query": QUERIES,
    "train.schedule": SCHEDULES,
}


def check_components(config: settings.Config, *, is_resumable: bool = False) -> None:
    """Resolve every name, check every parameter, and call query, objective and schedule on dummy input.

    A run with a checkpoint (``is_resumable``) does not need its pretrained weights, so they are not checked.
    """
    bind_params("data set", config.data.name, resolve_dataset(config.data.name).load, 0, config.data.params)
    model = resolve_model(config.model.name)
    bind_params("model", config.model.name, model.build, 0, config.model.params)
    if model.check_params is not None and not is_resumable:
        build_component("model", config.model, partial(model.check_params, **config.model.params))
    # Only built-in queries and objectives are called: user code may reject such small inputs.
    query, objective, schedule = make_query(config), make_objective(config), make_schedule(config, 10**6)
    if config.query.name in QUERIES:
        build_component("query", config.query, partial(_call_query_on_dummy_input, config, query))
    if config.objective.name in OBJECTIVES:
        build_component(
            "objective", config.objective, partial(_call_objective_on_dummy_input, config, objective)
        )
    check_oracle(config.oracle)
    build_component(
        "schedule", config.train.schedule, lambda: [schedule(step) + 0.0 for step in (0, 1, 10**6)]
    )


def _call_query_on_dummy_input(config: settings.Config, query: QuerySpec) -> None:
    """Run a query on a few all-zero samples."""
    generator = torch.Generator().manual_seed(0)
    z, features, head = torch.zeros(3, 2), torch.zeros(3, 4), torch.zeros(2, 4) if query.needs_head else None
    extras = {name: torch.full((3, *probe.example_shape), 0.5) for name, probe in PROBE_COLUMNS.items()}
    map_extras = {
        name: column[0][..., None, None].expand(*column.shape[1:], 2, 3) for name, column in extras.items()
    }
    if config.task.name == "segmentation" and config.task.resolved_unit == "image":
        known_labels = torch.full((4, 6), UNLABELLED, dtype=torch.int8)
        dummy_columns = image_columns(
            torch.zeros(2, 4, 6), torch.zeros(4, 2, 3), known_labels, query.needs, map_extras
        )
        columns = {name: torch.cat([column] * 3) for name, column in dummy_columns.items()}
    elif config.task.name == "classification":
        columns = compute_columns(z, features, query.needs, extras)
    if config.task.resolved_unit == "image":
        indices = torch.arange(3)
        samples = SampleTable(indices, torch.zeros_like(indices), columns)
        source = None
        if query.source_needs and config.task.name == "classification":
            source = SampleTable(
                indices, torch.zeros_like(indices), compute_columns(z, features, query.source_needs, extras)
            )
        elif query.source_needs:
            dummy_columns = image_columns(
                torch.zeros(2, 4, 6), torch.zeros(4, 2, 3), known_labels, query.source_needs, map_extras
            )
            source_columns = {name: torch.cat([column] * 3) for name, column in dummy_columns.items()}
            source = SampleTable(indices, torch.zeros_like(indices), source_columns)
        query.fn(QueryContext(samples, samples[indices[:1]], 1, generator, source, head))
        return
    known_labels = torch.full((4, 6), UNLABELLED, dtype=torch.int8)
    logits, unit = torch.zeros(2, 4, 6), make_task(config).unit
    pixels = torch.zeros(3, 4, 6, dtype=torch.uint8)
    select_in_image(
        query,
        unit,
        z=logits,
        features=logits,
        known_labels=known_labels,
        image=0,
        pixels=pixels,
        budget=3,
        generator=generator,
        extras=map_extras,
        head=head,
    )


class _ZeroModel(nn.Module):
    """A model that returns zeros, per image or per pixel."""

    def __init__(self, per_pixel: bool) -> None:
        super().__init__()
        self.network, self.per_pixel = nn.Linear(4, 2), per_pixel

    def forward(self, images: Tensor) -> Output:
        """Return zeros for two classes and four features."""
        grid = (1, 1) if self.per_pixel else ()
        z, features = images.new_zeros(len(images), 2, *grid), images.new_zeros(len(images), 4, *grid)
        return Output(z, features, (2, 2) if self.per_pixel else None)


def _call_objective_on_dummy_input(config: settings.Config, objective_spec: ObjectiveSpec) -> None:
    """Compute an objective on a few all-zero images."""
    images, per_pixel = torch.zeros(3, 1, 2, 2), config.task.name == "segmentation"
    model, auxiliary = _ZeroModel(per_pixel), None
    with global_seed(0, "a try"):
        if objective_spec.auxiliary is not None:
            auxiliary = objective_spec.auxiliary(
                AuxiliaryContext(model, classes=2, n_features=4, pool_size=3, per_pixel=per_pixel)
            )
        objective = objective_spec.bind_auxiliary(auxiliary)
        if not per_pixel:
            labelled = LabelledImages(images, torch.tensor([0, 1, 1]))
            objective(
                CachedForward(model),
                Batch(labelled, labelled, images, strong=images, pseudo_labelled=labelled),
            )
            return
        label_maps = torch.tensor([[0, 1], [UNLABELLED, VOID]], dtype=torch.int8).expand(3, 2, 2)
        objective(
            CachedForward(model),
            Batch(LabelledImages(images, label_maps), None, None, LabelledImages(images, label_maps)),
        )
