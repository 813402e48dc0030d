"""Builders of the components named in a config."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ducats import config as settings
from ducats.acquisition.budget import parse_time_budget, split_budget, split_pixels
from ducats.acquisition.queries import QUERIES, QueryFn, QuerySpec
from ducats.acquisition.units import Unit
from ducats.annotation.oracles import GroundTruthOracle, HumanOracle, Oracle
from ducats.annotation.rules import make_rules
from ducats.data import DATASETS, require_params
from ducats.data.decoding import read_aspect_ratios
from ducats.data.domain import AdaptationData, Images
from ducats.data.views import View
from ducats.ledger import load_ledger
from ducats.models import MODELS, MODELS_WITHOUT_WEIGHTS, EvidentialModel
from ducats.objectives import (
    OBJECTIVES,
    ObjectiveFn,
    ObjectiveSpec,
    as_objective_spec,
)
from ducats.run.components import RunPlan
from ducats.run.registry import bind_params, build_component, check_params, resolve
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import resolve_precision
from ducats.training.fit import Optimisation
from ducats.training.performance import PerformanceOptions
from ducats.training.schedules import SCHEDULES, LRSchedule, poly
from ducats.training.streams import StreamViews, steps_in_epoch
from ducats.training.task import TaskOptions, label_grid_sizes
from ducats.utils.errors import UserError
from ducats.utils.randomness import global_seed


def load_data(config: settings.Config) -> AdaptationData:
    """Load the data set of a config."""
    function = resolve("data set", DATASETS, config.data.name)
    params = {
        k: Path(v) if k in PATH_PARAMS and isinstance(v, str) else v for k, v in config.data.params.items()
    }
    require_params(config.data.name, function, params)
    return build_component(
        "data set", config.data, bind_params("data set", config.data.name, function, 0, params)
    )


PATH_PARAMS = ("source", "target", "test", "path", "cache", "root")  # parameters of data sets that are paths


def make_task(config: settings.Config) -> TaskOptions:
    """Return the labelling unit and the evaluation settings of segmentation."""
    task, evaluation = config.task, config.evaluation
    return TaskOptions(
        unit=Unit(task.resolved_unit, task.region_side, task.n_superpixels, task.compactness),
        resolution=task.resolution,
        label_downsampling=task.label_downsampling,
        two_step_upsampling=task.two_step_upsampling,
        evaluated_at=evaluation.resolution,
        average_flipped=evaluation.average_flipped,
        miou_star_exclude=evaluation.miou_star_exclude,
    )


def make_model(
    config: settings.Config, classes: int, channels: int, *, is_resumable: bool = False
) -> EvidentialModel:
    """Build the model. Random weights are determined by the run's seed.

    If a checkpoint provides the weights (``is_resumable``), no pretrained weights are loaded.
    """
    builder = resolve("model", MODELS, config.model.name)
    if is_resumable:
        builder = MODELS_WITHOUT_WEIGHTS.get(config.model.name, builder)
    for name in {"classes", "channels"} & config.model.params.keys():
        raise UserError(f"model.params.{name} is set by the data; remove it")
    accepted = inspect.signature(resolve("model", MODELS, config.model.name)).parameters
    if not {"classes", "channels"} <= accepted.keys() and not any(
        p.kind is p.VAR_KEYWORD for p in accepted.values()
    ):
        raise UserError(
            f"the model {config.model.name!r} must accept the keyword arguments classes= and channels="
        )
    params = {"classes": classes, "channels": channels, **config.model.params}
    build_fn = bind_params("model", config.model.name, builder, 0, params)
    with global_seed(config.seed, "model"):
        return EvidentialModel(build_component("model", config.model, build_fn), config.model.evidence)


def make_oracle(config: settings.Config, data: AdaptationData, run_folder: RunFolder) -> Oracle:
    """Build the oracle; ``auto`` is the ground truth if the data has it, else human annotators."""
    check_oracle(config.oracle)
    name = config.oracle.name
    if name == "auto":
        name = "human" if data.ground_truth is None else "ground_truth"
    if name == "ground_truth":
        if data.ground_truth is None:
            raise UserError(
                "the oracle 'ground_truth' needs the target's labels, but this data has none; use --oracle "
                "human, or --ground-truth if the target's subfolders are classes"
            )
        if config.oracle.params:
            raise UserError(
                f"the oracle 'ground_truth' has no parameters, but oracle.params is {config.oracle.params}; "
                "remove it, or use --oracle human"
            )
        return GroundTruthOracle(data.ground_truth, config.task.resolution)
    if name == "human":
        return _make_human_oracle(config, data, run_folder)
    user_oracle: Callable[..., Oracle] = resolve("oracle", {}, name)
    return bind_params("oracle", name, user_oracle, 1, config.oracle.params)(data)


def _make_human_oracle(config: settings.Config, data: AdaptationData, run_folder: RunFolder) -> HumanOracle:
    sizes = label_grid_sizes(data.pool, config.task.resolution) if data.source.per_pixel else None
    spec: QuerySpec | QueryFn = resolve("query", QUERIES, config.query.name)
    query_summary = spec.summary if isinstance(spec, QuerySpec) else QuerySpec(spec).summary
    time_budget = parse_time_budget(
        config.acquisition.budget, config.acquisition.seconds_per_label, config.acquisition.growth
    )

    def remaining_seconds(round_number: int) -> float | None:
        """Return the annotation time in seconds that is left before a round."""
        if time_budget is None:
            return None
        ledger, earlier_rounds = load_ledger(run_folder), round_number - 1
        return time_budget.remaining_seconds(
            ledger.seconds(earlier_rounds),
            ledger.n_units(earlier_rounds),
            ledger.n_timed_units(earlier_rounds),
        )

    return HumanOracle(
        run_folder.questions_path,
        data.pool,
        data.classes,
        sizes,
        unit=config.task.resolved_unit if sizes is not None else "image",
        hints=run_folder.load_hints,
        query=config.query.name,
        query_summary=query_summary,
        max_seconds=remaining_seconds,
        **config.oracle.params,
    )


ORACLE_NAMES = ("auto", "ground_truth", "human")


def check_oracle(oracle: settings.ComponentConfig) -> None:
    """Resolve an oracle and check its parameters."""
    if oracle.name == "ground_truth" and oracle.params:
        raise UserError(
            f"the oracle 'ground_truth' has no parameters, but oracle.params is {oracle.params}; remove it"
        )
    if oracle.name in ("auto", "human"):
        build_component("oracle", oracle, bind_params("oracle", oracle.name, make_rules, 0, oracle.params))
    if oracle.name not in ORACLE_NAMES:
        bind_params(
            "oracle",
            oracle.name,
            resolve("oracle", dict.fromkeys(ORACLE_NAMES, GroundTruthOracle), oracle.name),
            1,
            oracle.params,
        )


def make_views(config: settings.Config) -> StreamViews:
    """Build the views; ``labelled`` defaults to ``source``."""
    views = config.views
    built = {
        name: View(**getattr(views, name).model_dump())
        for name in ("source", "unlabelled", "scoring", "test")
    }
    labelled = built["source"] if views.labelled is None else View(**views.labelled.model_dump())
    strong = None if views.strong is None else View(**views.strong.model_dump())
    return StreamViews(labelled=labelled, strong=strong, **built)


def make_run_plan(config: settings.Config, data: AdaptationData) -> RunPlan:
    """Build the run plan: training length, rounds and number of labels per round."""
    epochs_of_rounds = settings.query_epochs(config)
    train, acquisition, pool = config.train, config.acquisition, data.pool
    selects_pixels = data.source.per_pixel and config.task.resolved_unit != "image"
    time_budget = parse_time_budget(acquisition.budget, acquisition.seconds_per_label, acquisition.growth)
    has_pixel_budget = selects_pixels and time_budget is None
    budget: tuple[int, ...] = ()
    if has_pixel_budget:
        areas = label_grid_sizes(pool, config.task.resolution).prod(1).tolist()
        budgets_per_image = split_pixels(
            acquisition.budget, areas, len(epochs_of_rounds), acquisition.rounding
        )
        budget = tuple(sum(round_counts) for round_counts in zip(*budgets_per_image, strict=True))
    elif time_budget is None:
        budget = split_budget(
            acquisition.budget, len(pool), len(epochs_of_rounds), acquisition.rounding, acquisition.growth
        )
    steps = train.steps_per_epoch or steps_in_epoch(len(data.source), len(pool), train.batch_size)
    return RunPlan(
        epochs=train.epochs,
        query_epochs=epochs_of_rounds,
        budget=budget,
        pixel_budget=acquisition.budget if has_pixel_budget else None,
        rounding=acquisition.rounding,
        time_budget=time_budget,
        batch_size=train.batch_size,
        steps_per_epoch=train.steps_per_epoch,
        labelled_batches=train.labelled_batches,
        target_batching=train.target_batching,
        source_sampling=train.source_sampling,
        optimisation=Optimisation(
            lr=train.lr,
            momentum=train.momentum,
            nesterov=train.nesterov,
            weight_decay=train.weight_decay,
            clip_grad_norm=train.clip_grad_norm,
            lr_multipliers=train.lr_multipliers,
        ),
        schedule=make_schedule(config, steps * train.epochs),
        source_weight=train.source_weight,
        evaluate_every=config.evaluation.every_epochs,
        scoring_batch_size=config.engine.scoring_batch_size,
        snapshot_samples=config.engine.snapshot_samples,
        seed=config.seed,
    )


def make_query(config: settings.Config) -> QueryFn | QuerySpec:
    """Build the query with its parameters; a plain user function gets all columns of the model."""
    name = config.query.name
    spec: QuerySpec | QueryFn = resolve("query", QUERIES, name)
    if not isinstance(spec, QuerySpec):
        return bind_params("query", name, spec, 1, config.query.params)
    bind_params("query", name, spec.fn, 1, config.query.params)
    return spec.bind(config.query.params)


def make_schedule(config: settings.Config, steps: int) -> LRSchedule:
    """Build the learning-rate schedule for a training of ``steps`` steps.

    The default horizon of ``poly`` is 1.25 times the training, as published.
    """
    schedule_config = config.train.schedule
    function = resolve("schedule", SCHEDULES, schedule_config.name)
    params = dict(schedule_config.params)
    if function is poly:
        params.setdefault("horizon", math.ceil(POLY_HORIZON_FACTOR * steps))
    return bind_params("schedule", schedule_config.name, function, 1, params)


POLY_HORIZON_FACTOR = 1.25  # horizon of `poly` over training steps; published: 62 500 for 50 000


def make_objective(config: settings.Config) -> ObjectiveSpec:
    """Build the objective with its parameters."""
    name, params = config.objective.name, config.objective.params
    entry: ObjectiveFn | ObjectiveSpec = resolve("objective", OBJECTIVES, name)
    spec = as_objective_spec(entry)
    check_params("objective", name, spec.signature, 2, params)
    return spec.bind(params)


def with_resolved_precision(config: settings.Config) -> settings.Config:
    """Return the config with its precision, part of the run's identity, resolved for this machine."""
    precision = resolve_precision(config.engine.precision, config.engine.device)
    return config.model_copy(update={"engine": config.engine.model_copy(update={"precision": precision})})


def make_performance_options(config: settings.Config) -> PerformanceOptions:
    """Build the performance options."""
    engine = config.engine
    return PerformanceOptions(
        engine.image_placement,
        engine.channels_last,
        engine.fused_optimiser,
        engine.cuda_graphs,
        engine.compile,
    )


def with_aspect_ratios(data: AdaptationData, views: StreamViews) -> AdaptationData:
    """Return the data with original aspect ratios where a view needs them."""
    source, test = data.source, data.test
    tests_on_pool = test is not None and test.images is data.pool
    pool_views = (
        views.labelled,
        views.unlabelled,
        views.strong_or_default,
        views.scoring,
        *([views.test] if tests_on_pool else []),
    )
    pool = with_aspect_ratio(data.pool, *pool_views)
    if test is not None:
        test = replace(test, images=pool if tests_on_pool else with_aspect_ratio(test.images, views.test))
    source = replace(source, images=with_aspect_ratio(source.images, views.source))
    return replace(data, source=source, pool=pool, test=test)


def with_aspect_ratio(images: Images, *views: View) -> Images:
    """Return the images with aspect ratios read from their files if one of the views needs them."""
    needs_aspect = any(view.resize == "short_side" for view in views)
    if not needs_aspect or images.aspect is not None or images.files is None:
        return images
    return replace(images, aspect=read_aspect_ratios(images.files))
