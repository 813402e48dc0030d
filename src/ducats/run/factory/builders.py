"""Builders of the components named in a config."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from ducats.acquisition.budget import (
    TimeBudget,
    parse_time_budget,
    split_after_initial,
    split_audit,
    split_budget,
    split_pixels,
)
from ducats.acquisition.queries import QuerySpec, resolve_query
from ducats.acquisition.stop_rule import StopRule
from ducats.annotation.oracles import GroundTruthOracle, HumanOracle, Oracle
from ducats.annotation.rules import make_rules
from ducats.config import AcquisitionConfig, ComponentConfig, Config, query_epochs
from ducats.data.decoding import read_aspect_ratios, with_bilinear_pixels
from ducats.data.domain import AdaptationData, Images, no_images
from ducats.data.embedding_cache import EmbeddingCache
from ducats.data.registry import resolve_dataset
from ducats.data.store import ArrayStore, check_all_readable, decode_on_first_use
from ducats.ledger import InitialLabels, load_initial_labels, load_ledger
from ducats.models import EvidentialModel, resolve_model
from ducats.models.freezing import freeze_backbone
from ducats.objectives import ObjectiveSpec, resolve_objective
from ducats.run.components import RunPlan
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import ScoringOptions, StreamViews, TrainingOptions, View
from ducats.training.distributed import has_gpu, resolve_precision
from ducats.training.schedules import SCHEDULES, LRSchedule, cosine, poly, with_warmup
from ducats.training.streams import steps_in_epoch
from ducats.training.task import label_grid_sizes
from ducats.utils.errors import UserError
from ducats.utils.findings import join_quoted
from ducats.utils.progress import activity
from ducats.utils.randomness import global_seed
from ducats.utils.registry import bind_params, build_component, check_params, resolve


def load_data(config: Config) -> AdaptationData:
    """Load the data set of a config; with a frozen backbone, known files are decoded when they are used."""
    spec = resolve_dataset(config.data.name)
    params = {
        k: Path(v) if k in PATH_PARAMS and isinstance(v, str) else v
        for k, v in spec.with_default_size(config.data.params, config.views.stored_size).items()
    }
    spec.require_params(config.data.name, params)
    load = bind_params("data set", config.data.name, spec.load, 0, params)
    with decode_on_first_use(cache_of_embeddings(config)):
        data = build_component("data set", config.data, load)
    if isinstance(data, AdaptationData):  # user code may return anything; see `check_run`
        _check_unreadable(data, strict=config.data.strict)
    return data


def cache_of_embeddings(config: Config) -> EmbeddingCache | None:
    """Return the cache if images are embedded and come from this package: others may expect tensors."""
    if config.model.freeze != "backbone" or ":" in config.data.name:
        return None
    return EmbeddingCache(config.engine.embedding_cache, config.engine.embedding_cache_gb)


def _check_unreadable(data: AdaptationData, *, strict: bool) -> None:
    """Raise if files are unreadable and all must be readable, or if a source class has no other images."""
    for images in data.image_sets.values() if strict else ():
        check_all_readable(images.unreadable, len(images))
    if data.source.images.unreadable and not data.source.per_pixel:
        occurring = set(data.source.labels[:].tolist())
        missing = [name for index, name in enumerate(data.classes) if index not in occurring]
        if missing:
            path, reason = data.source.images.unreadable[0]
            raise UserError(
                f"no source image of {join_quoted(missing)} can be read; first unreadable file: {path} "
                f"({reason}); replace the files"
            )


PATH_PARAMS = ("source", "target", "test", "path", "cache", "root")  # parameters of data sets that are paths


def model_params(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of the model: its parameters, and settings of the run that it accepts."""
    name, given = "bottleneck_relu", config.model.params
    if name in given:
        raise UserError(f"model.params.{name} is a setting of all models; set model.{name} instead")
    accepted = inspect.signature(resolve_model(config.model.name).build).parameters
    offered: dict[str, Any] = {name: config.model.bottleneck_relu}
    if (side := _side_of_views(config.views)) is not None:
        offered["img_size"] = side
    return given | {key: value for key, value in offered.items() if key in accepted and key not in given}


def _side_of_views(views: StreamViews) -> int | None:
    """Return the side of the images if it is the same in all views; else None."""
    used = (views.source, views.labelled_or_source, views.unlabelled, views.scoring, views.test)
    sizes = {view.size for view in used}
    side = sizes.pop() if len(sizes) == 1 else None
    return side if isinstance(side, int) else None


def make_model(config: Config, classes: int, channels: int, *, is_resumable: bool = False) -> EvidentialModel:
    """Build the model. Random weights are determined by the run's seed.

    If a checkpoint provides the weights (``is_resumable``), no pretrained weights are loaded.
    """
    spec = resolve_model(config.model.name)
    for name in {"classes", "channels"} & config.model.params.keys():
        raise UserError(f"model.params.{name} is set by the data; remove it")
    accepted = inspect.signature(spec.build).parameters
    if not {"classes", "channels"} <= accepted.keys() and not any(
        p.kind is p.VAR_KEYWORD for p in accepted.values()
    ):
        raise UserError(
            f"the model {config.model.name!r} must accept the keyword arguments classes= and channels="
        )
    params = {"classes": classes, "channels": channels, **model_params(config)}
    builder = (spec.build_without_weights if is_resumable else None) or spec.build
    build_fn = bind_params("model", config.model.name, builder, 0, params)
    what = "building the model" if is_resumable else "building the model and loading its weights"
    with activity(what), global_seed(config.seed, "model"):
        network = build_component("model", config.model, build_fn)
        if config.model.freeze != "auto":
            freeze_backbone(network, config.model.freeze)
        return EvidentialModel(network, config.model.evidence)


def make_oracle(
    config: Config, data: AdaptationData, run_folder: RunFolder, shared_answers: Sequence[Path] = ()
) -> Oracle:
    """Build the oracle; ``auto`` is the ground truth if the data has it, else human annotators."""
    check_oracle(config.oracle, has_ground_truth=data.ground_truth is not None)
    name = config.oracle.name
    if shared_answers and (
        name not in ("auto", "human") or (name == "auto" and data.ground_truth is not None)
    ):
        raise UserError(
            f"--answers {shared_answers[0]} is for human annotators, but the oracle is {name!r} and needs "
            "none; omit it, or use --oracle human"
        )
    for folder in shared_answers:
        if not folder.is_dir():
            raise UserError(f"--answers {folder} is not a folder; give the folder of a run or a sweep")
    if name in ("auto", "ground_truth") and data.ground_truth is not None:
        return GroundTruthOracle(
            data.ground_truth, config.task.resolution, data.all_classes if data.target_only_classes else ()
        )
    if name in ("auto", "human"):
        return _make_human_oracle(config, data, run_folder, shared_answers)
    user_oracle: Callable[..., Oracle] = resolve("oracle", {}, name)
    return bind_params("oracle", name, user_oracle, 1, config.oracle.params)(data)


def _make_human_oracle(
    config: Config, data: AdaptationData, run_folder: RunFolder, shared_answers: Sequence[Path]
) -> HumanOracle:
    sizes = label_grid_sizes(data.pool, config.task.resolution) if data.source.per_pixel else None
    query = resolve_query(config.query.name)
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
        query_summary=query.reason or query.summary,
        explained_by=query.explained_by,
        max_seconds=remaining_seconds,
        shared_answers=shared_answers,
        **config.oracle.params,
    )


ORACLE_NAMES = ("auto", "ground_truth", "human")


def check_oracle(oracle: ComponentConfig, has_ground_truth: bool | None = None) -> None:
    """Resolve an oracle, check its parameters, and whether it has the ground truth that it needs.

    Args:
        has_ground_truth: whether the data has the target's labels; None if unknown.
    """
    if oracle.name == "ground_truth" and has_ground_truth is False:
        raise UserError(
            "the oracle 'ground_truth' needs the target's labels, but this data has none; use --oracle "
            "human, or --ground-truth if the target's subfolders are classes"
        )
    uses_ground_truth = oracle.name == "ground_truth" or (oracle.name == "auto" and has_ground_truth)
    if uses_ground_truth and oracle.params:
        raise UserError(
            f"the oracle 'ground_truth' has no parameters, but oracle.params is {oracle.params}; remove it, "
            "or use --oracle human"
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


def make_initial_labels(config: Config, data: AdaptationData, run_folder: RunFolder) -> InitialLabels | None:
    """Return the labels of an earlier run with which this one starts; once it has them, its own copy."""
    if config.acquisition.start_from is None:
        return None
    if 1 in run_folder.labelled_rounds():  # the earlier run may be gone, or have more labels by now
        return load_initial_labels(run_folder.path, data.pool.keys, data.classes, n_rounds=1)
    initial = load_initial_labels(Path(config.acquisition.start_from), data.pool.keys, data.classes)
    return replace(initial, is_audit=None) if config.acquisition.audit == 0 else initial


def make_run_plan(config: Config, data: AdaptationData, n_initial: int = 0) -> RunPlan:
    """Build the run plan: training length, rounds and number of labels per round.

    Args:
        n_initial: number of labels with which the run starts.

    Whether labels are for the audit depends on whether the data has a test set.
    """
    epochs_of_rounds = query_epochs(config)
    train, acquisition, pool = config.train, config.acquisition, data.pool
    selects_pixels = data.source.per_pixel and not config.task.labels_whole_images
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
        budget = labels_per_round(acquisition, len(pool), len(epochs_of_rounds), n_initial)
        epochs_of_rounds = epochs_of_rounds[: len(budget)]
    steps = train.steps_per_epoch or steps_in_epoch(
        len(data.source),
        len(pool),
        train.batch_size,
        head_only=config.model.freeze == "backbone",
        per_pixel=data.source.per_pixel,
    )
    return replace(
        make_training_plan(config, steps * train.epochs),
        query_epochs=epochs_of_rounds,
        budget=budget,
        pixel_budget=acquisition.budget if has_pixel_budget else None,
        rounding=acquisition.rounding,
        time_budget=time_budget,
        audit=audit_per_round(
            acquisition,
            budget,
            time_budget,
            rounds=len(epochs_of_rounds),
            n_initial=n_initial,
            has_test=data.test is not None,
            labels_maps=data.source.per_pixel and config.task.labels_whole_images,
        ),
        release_audit=acquisition.release_audit,
        until=None if acquisition.until is None else StopRule.parse(acquisition.until),
    )


def audit_per_round(
    acquisition: AcquisitionConfig,
    budget: Sequence[int],
    time_budget: TimeBudget | None,
    *,
    rounds: int,
    n_initial: int,
    has_test: bool,
    labels_maps: bool,
) -> tuple[int, ...]:
    """Return how many labels of each round are for the audit; of initial labels and of label maps, none.

    Args:
        budget: labels of each round, empty with a time budget.
        rounds: number of rounds, with that of the initial labels.
        labels_maps: whether whole label maps are labelled.
    """
    if labels_maps:
        return ()
    first = 1 if n_initial else 0
    if time_budget is not None:
        questions = time_budget.questions_in_round(None, 0, 0, max(1, rounds - first))
        budget = [questions] * rounds
    is_needed = acquisition.until is not None
    per_round = split_audit(acquisition.audit, budget[first:], is_needed=is_needed, has_test=has_test)
    return (*(0,) * first, *per_round) if per_round else ()


def labels_per_round(
    acquisition: AcquisitionConfig, pool: int, rounds: int, n_initial: int = 0
) -> tuple[int, ...]:
    """Return the number of labels per round; the first round has the initial labels, if there are any."""
    rounding, growth = acquisition.rounding, acquisition.growth
    if n_initial:
        return split_after_initial(acquisition.budget, pool, rounds, n_initial, rounding, growth)
    return split_budget(acquisition.budget, pool, rounds, rounding, growth)


def make_training_plan(config: Config, steps: int) -> RunPlan:
    """Build a plan for a training of ``steps`` steps, without rounds."""
    return RunPlan(
        **settings_of(TrainingOptions, config.train),
        **settings_of(ScoringOptions, config.engine),
        query_epochs=(),
        optimisation=config.train,
        schedule=make_schedule(config, steps),
        seed=config.seed,
    )


def settings_of(kind: type, section: Any) -> dict[str, Any]:
    """Return the settings of a section that are fields of ``kind``."""
    return {field.name: getattr(section, field.name) for field in fields(kind)}


def make_query(config: Config) -> QuerySpec:
    """Build the query with its parameters."""
    spec = resolve_query(config.query.name)
    check_params("query", config.query.name, inspect.signature(spec.fn), 1, config.query.params)
    return spec.bind(config.query.params)


def make_schedule(config: Config, steps: int) -> LRSchedule:
    """Build the learning-rate schedule for a training of ``steps`` steps, with its warm-up.

    The default horizon of ``poly`` is 1.25 times the training, as published; that of ``cosine`` is the
    training.
    """
    schedule_config = config.train.schedule
    function = resolve("schedule", SCHEDULES, schedule_config.name)
    params = dict(schedule_config.params)
    if function in HORIZON_FACTORS:
        params.setdefault("horizon", math.ceil(HORIZON_FACTORS[function] * steps))
    schedule: LRSchedule = bind_params("schedule", schedule_config.name, function, 1, params)
    warmup_steps = round(config.train.warmup_fraction * steps)
    return partial(with_warmup, schedule=schedule, warmup_steps=warmup_steps) if warmup_steps else schedule


# Default horizon of a schedule over training steps; published for `poly`: 62 500 for 50 000.
HORIZON_FACTORS: Mapping[Callable[..., float], float] = {poly: 1.25, cosine: 1.0}


def make_objective(config: Config) -> ObjectiveSpec:
    """Build the objective with its parameters."""
    name, params = config.objective.name, config.objective.params
    spec = resolve_objective(name)
    check_params("objective", name, spec.signature, 2, params)
    return spec.bind(params)


def resolve_for_machine(config: Config) -> Config:
    """Return the config with the parts of the run's identity resolved that depend on this machine."""
    precision = resolve_precision(config.engine.precision, config.engine.device)
    engine = replace(config.engine, precision=precision)  # type: ignore[arg-type] # validated here
    model = config.model
    if model.freeze == "auto":
        freezes = not has_gpu(config.engine.device) and can_embed_images(config)
        model = replace(model, freeze="backbone" if freezes else "none")
    return config.model_copy(update={"engine": engine, "model": model})


def can_embed_images(config: Config) -> bool:
    """Return whether the model is a head on a pretrained timm backbone and can be trained on embeddings."""
    spec, params = resolve_model(config.model.name), config.model.params
    is_pretrained = params.get("pretrained", True) or params.get("weights") is not None
    has_lora = params.get("lora_rank") is not None
    objective = config.objective.name
    transforms_images = resolve_objective(objective).transforms_images or (
        spec.per_pixel and ":" in objective
    )
    return spec.has_timm_backbone and bool(is_pretrained) and not has_lora and not transforms_images


def prepare_for_views(
    data: AdaptationData,
    views: StreamViews,
    *,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Return the data with all that the views need from image files, see `prepare_images`.

    Args:
        cache: as in `decode_images`.
        memory_gb: gigabytes for all pixels, those that are decoded already included; None: no limit but the
            free memory.
    """
    if memory_gb is not None:
        image_sets = [data.source.images, data.pool, *([] if data.test is None else [data.test.images])]
        decoded = {id(images.pixels): images.pixels.shape.numel() for images in image_sets}
        memory_gb = max(0.0, memory_gb - sum(decoded.values()) / 2**30)
    prepare = partial(prepare_images, store=ArrayStore(cache, memory_gb))
    source, test = data.source, data.test
    tests_on_pool = test is not None and test.images is data.pool
    pool_views = (
        views.labelled_or_source,
        views.unlabelled,
        views.strong_or_default,
        views.scoring,
        *([views.test] if tests_on_pool else []),
    )
    pool = prepare(data.pool, *pool_views)
    if test is not None:
        test = replace(test, images=pool if tests_on_pool else prepare(test.images, views.test))
    source = replace(source, images=prepare(source.images, views.source) if len(source) else no_images(pool))
    return replace(data, source=source, pool=pool, test=test)


def prepare_images(images: Images, *views: View, store: ArrayStore | None = None) -> Images:
    """Return the images with what the views need from their files: aspect ratios and bilinear pixels.

    Args:
        store: where the bilinear pixels are stored; None: in memory, or in a temporary file.
    """
    if images.files is None:
        return images
    if images.aspect is None and any(view.resize == "short_side" for view in views):
        images = replace(images, aspect=read_aspect_ratios(images.files))
    if images.bilinear_pixels is None and any(view.interpolation == "bilinear" for view in views):
        images = with_bilinear_pixels(images, store or ArrayStore(None, None))
    return images
