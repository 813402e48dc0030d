"""Validate all names and parameters of a config before any image is read."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ducats.acquisition.criteria import PROBE_COLUMNS, compute_columns
from ducats.acquisition.queries import QUERIES, QuerySpec
from ducats.acquisition.samples import QueryContext, SampleTable, function_name
from ducats.acquisition.units import image_columns, select_in_image
from ducats.annotation.rules import make_rules
from ducats.config import Config
from ducats.data.domain import UNLABELLED, VOID
from ducats.data.registry import DATASETS, resolve_dataset
from ducats.models import MODELS, model_names, resolve_model
from ducats.models.output import Output
from ducats.objectives import (
    OBJECTIVES,
    AuxiliaryContext,
    Batch,
    CachedForward,
    LabelledImages,
    ObjectiveSpec,
)
from ducats.run.checks import check_cuda_graphs
from ducats.run.factory.builders import (
    check_oracle,
    make_objective,
    make_query,
    make_schedule,
    model_params,
)
from ducats.training.fit import unknown_layers_error
from ducats.training.schedules import SCHEDULES
from ducats.utils.errors import UserError
from ducats.utils.findings import Check, Finding, raise_first_error
from ducats.utils.randomness import global_seed
from ducats.utils.registry import bind_params, build_component, resolve


def describe_params(config: Config) -> dict[str, str]:
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
            function = component
            signature = inspect.signature(component.func if isinstance(component, partial) else component)
        keywords = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        if name == "model":  # without the setting of all models
            keywords = [p for p in keywords if not hasattr(config.model, p.name)]
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


def check_config(
    config: Config, *, is_resumable: bool = False, per_pixel: bool | None = None, runs_here: bool = True
) -> None:
    """Raise the first error of ``config_checks``."""
    raise_first_error(
        *config_checks(config, is_resumable=is_resumable, per_pixel=per_pixel, runs_here=runs_here)
    )


def config_checks(
    config: Config, *, is_resumable: bool = False, per_pixel: bool | None = None, runs_here: bool = True
) -> list[Check]:
    """Return a check of the task and of each component: its name, its parameters, a call on dummy input.

    A run with a checkpoint (``is_resumable``) does not need its pretrained weights, so they are not checked.

    Args:
        runs_here: whether the run starts on this machine, which then needs the weights or a connection.
    """
    return [
        partial(check_task, config, per_pixel),
        partial(_check_data, config),
        partial(_check_model, config, is_resumable),
        partial(_check_query, config),
        partial(_check_objective, config),
        partial(check_oracle, config.oracle),
        partial(_check_schedule, config),
        lambda: check_cuda_graphs(config.engine.cuda_graphs, make_objective(config)),
        *([partial(_check_weights, config)] if runs_here and not is_resumable else []),  # last: takes seconds
    ]


def check_run_folder(config: Config, run_folder: Path) -> Iterator[Finding]:
    """Check that the files of the run do not become images or classes of the data."""
    if config.data.name != "folders":
        return
    for role in ("source", "target", "test"):
        folder = config.data.params.get(role)
        if folder is not None and run_folder.resolve().is_relative_to(Path(folder).expanduser().resolve()):
            yield Finding(
                "error",
                f"the run folder {run_folder} is in the {role} folder {folder}, where its files would be "
                "taken for images; give a folder elsewhere with --out",
            )


def check_task(config: Config, per_pixel: bool | None = None) -> Iterator[Finding]:
    """Check that data, model and settings fit the task, classification or segmentation.

    Args:
        per_pixel: whether the data has per-pixel labels; None: what its spec says.
    """
    data, model, is_segmentation = config.data.name, config.model.name, config.task.name == "segmentation"
    if per_pixel is None:
        per_pixel = resolve_dataset(data).per_pixel
    if per_pixel is not None and per_pixel != is_segmentation:
        yield Finding(
            "error",
            f"the data {data!r} has one label per image, but task.name is segmentation (set by methods such "
            "as ripu): start with -c segmentation and give data with label maps, or choose another --method"
            if is_segmentation
            else f"the data {data!r} has one label per pixel, but task.name is classification: start with "
            "-c segmentation, which provides matching settings",
        )
    elif resolve_model(model).per_pixel is (not is_segmentation):
        yield Finding(
            "error",
            f"the model {model!r} outputs one class per image, but task.name is segmentation: start with "
            f"-c segmentation, or set model.name={model_names(per_pixel=True)}"
            if is_segmentation
            else f"the model {model!r} outputs one class per pixel, but task.name is classification: set "
            f"model.name={model_names(per_pixel=False)}, or start with -c segmentation",
        )
    elif is_segmentation and config.acquisition.start_from is not None:
        yield Finding(
            "error", "acquisition.start_from (--start-from) is for labels of images, not of pixels; remove it"
        )
    elif not is_segmentation and (config.evaluation.average_flipped or config.evaluation.miou_star_exclude):
        yield Finding(
            "error",
            "evaluation.average_flipped and evaluation.miou_star_exclude apply only to segmentation: remove "
            "them",
        )


def _check_data(config: Config) -> None:
    name = config.data.name
    bind_params("data set", name, resolve_dataset(name).load, 0, config.data.params)


def _check_model(config: Config, is_resumable: bool) -> None:
    name, params = config.model.name, model_params(config)
    model = resolve_model(name)
    if "backbone" in params and name in MODELS and not model.has_timm_backbone:
        others = model_names(per_pixel=model.per_pixel is True, has_backbone=True)
        raise UserError(
            f"the model {name!r} has no backbone to choose; use another: --set model.name={others}"
        )
    if params.get("lora_rank") is not None and config.model.freeze == "backbone":
        raise UserError(
            "model.params.lora_rank trains updates of the backbone, but model.freeze is backbone; set "
            "model.freeze=none, or model.params.lora_rank=null"
        )
    bind_params("model", name, model.build, 0, params)
    if model.check_params is not None and not is_resumable:
        build_component("model", config.model, partial(model.check_params, **params))
    if config.train.layer_decay is not None and name in MODELS and name != "timm":
        raise unknown_layers_error()


def _check_weights(config: Config) -> None:
    model = resolve_model(config.model.name)
    if model.check_weights is not None:
        model.check_weights(**config.model.params)


# Only built-in queries and objectives are called: user code may reject such small inputs.


def _check_query(config: Config) -> None:
    query = make_query(config)
    if config.query.name in QUERIES:
        build_component("query", config.query, partial(_call_query_on_dummy_input, config, query))


def _check_objective(config: Config) -> None:
    objective = make_objective(config)
    if objective.transforms_images and config.model.freeze == "backbone":
        raise UserError(
            f"the objective {config.objective.name!r} changes images in training, so they cannot be embedded "
            "once; set model.freeze=none (--finetune), or choose another objective.name"
        )
    if config.objective.name in OBJECTIVES:
        build_component(
            "objective", config.objective, partial(_call_objective_on_dummy_input, config, objective)
        )


def _check_schedule(config: Config) -> None:
    schedule = make_schedule(config, 10**6)
    build_component(
        "schedule", config.train.schedule, lambda: [schedule(step) + 0.0 for step in (0, 1, 10**6)]
    )


def _call_query_on_dummy_input(config: Config, query: QuerySpec) -> None:
    """Run a query on a few all-zero samples."""
    generator, head = torch.Generator().manual_seed(0), torch.zeros(2, 4) if query.needs_head else None
    extras = {name: torch.full((3, *probe.example_shape), 0.5) for name, probe in PROBE_COLUMNS.items()}
    map_extras = {
        name: column[0][..., None, None].expand(*column.shape[1:], 2, 3) for name, column in extras.items()
    }
    logits, known_labels = torch.zeros(2, 4, 6), torch.full((4, 6), UNLABELLED, dtype=torch.int8)
    if config.task.resolved_unit != "image":
        select_in_image(
            query,
            config.task,
            z=logits,
            features=logits,
            known_labels=known_labels,
            image=0,
            pixels=torch.zeros(3, 4, 6, dtype=torch.uint8),
            budget=3,
            generator=generator,
            extras=map_extras,
            head=head,
        )
        return

    def make_samples(needs: tuple[str, ...]) -> SampleTable:
        if config.task.name == "classification":
            columns = compute_columns(torch.zeros(3, 2), torch.zeros(3, 4), needs, extras)
        else:
            image = image_columns(logits, torch.zeros(4, 2, 3), known_labels, needs, map_extras)
            columns = {name: torch.cat([column] * 3) for name, column in image.items()}
        return SampleTable(torch.arange(3), torch.zeros(3, dtype=torch.long), columns)

    samples = make_samples(query.needs)
    source = make_samples(query.source_needs) if query.source_needs else None
    query.fn(QueryContext(samples, samples[torch.arange(1)], 1, generator, source, head))


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


def _call_objective_on_dummy_input(config: Config, objective_spec: ObjectiveSpec) -> None:
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
                Batch(
                    labelled,
                    labelled,
                    images,
                    strong=images,
                    pseudo_labelled=labelled,
                    stored_source=images.byte(),
                    stored_labelled=images.byte(),
                ),
            )
            return
        label_maps = torch.tensor([[0, 1], [UNLABELLED, VOID]], dtype=torch.int8).expand(3, 2, 2)
        objective(
            CachedForward(model),
            Batch(LabelledImages(images, label_maps), None, None, LabelledImages(images, label_maps)),
        )
