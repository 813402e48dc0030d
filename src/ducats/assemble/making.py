"""Builders of the components named in a config."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ducats import config as settings
from ducats.answers.rules import ruling
from ducats.budget import split_budget, split_pixels, time_of
from ducats.data import DATASETS, require_options
from ducats.data.decode import aspects
from ducats.data.views import View
from ducats.domain import Images, Shift
from ducats.engine.fit import Optimisation
from ducats.engine.processes import settle_precision
from ducats.engine.schedules import SCHEDULES, Schedule, poly
from ducats.engine.speed import Speed
from ducats.engine.streams import Views, steps_in_epoch
from ducats.engine.task import Task, bought_sizes
from ducats.errors import UserError
from ducats.lookup import bind, build, check_knobs, look_up
from ducats.models import BLANK, MODELS, Evidential
from ducats.objectives import (
    OBJECTIVES,
    Objective,
    Training,
    as_training,
)
from ducats.oracles import Oracle, People, Truth
from ducats.parts import Plan
from ducats.queries import QUERIES, Query, Strategy
from ducats.randomness import global_seed
from ducats.rundir import RunDir
from ducats.units import Unit


def load_data(config: settings.Config) -> Shift:
    """Load the data set of a config."""
    function = look_up("data set", DATASETS, config.data.name)
    knobs = {k: Path(v) if k in PATHS and isinstance(v, str) else v for k, v in config.data.knobs.items()}
    require_options(config.data.name, function, knobs)
    return build("data set", config.data, bind("data set", config.data.name, function, 0, knobs))


PATHS = ("source", "target", "test", "path", "cache", "root")  # parameters of data sets that are paths


def make_task(config: settings.Config) -> Task:
    """Return the labelling unit and the evaluation settings of segmentation."""
    task, evaluation = config.task, config.evaluation
    return Task(
        unit=Unit(task.bought, task.side, task.superpixels, task.compactness),
        resolution=task.resolution,
        fill=task.fill,
        twice=task.twice,
        measured_at=evaluation.resolution,
        flip=evaluation.flip,
        star_without=evaluation.star_without,
    )


def make_model(config: settings.Config, classes: int, channels: int, *, begun: bool = False) -> Evidential:
    """Build the model. Random weights are determined by the run's seed.

    If a checkpoint provides the weights (``begun``), no pretrained weights are loaded.
    """
    builder = look_up("model", MODELS, config.model.name)
    if begun:
        builder = BLANK.get(config.model.name, builder)
    for name in {"classes", "channels"} & config.model.knobs.keys():
        raise UserError(f"model.knobs.{name} is set by the data; remove it")
    known = inspect.signature(look_up("model", MODELS, config.model.name)).parameters
    if not {"classes", "channels"} <= known.keys() and not any(
        p.kind is p.VAR_KEYWORD for p in known.values()
    ):
        raise UserError(
            f"the model {config.model.name!r} must accept the keyword arguments classes= and channels="
        )
    knobs = {"classes": classes, "channels": channels, **config.model.knobs}
    make = bind("model", config.model.name, builder, 0, knobs)
    with global_seed(config.seed, "model"):
        return Evidential(build("model", config.model, make), config.model.evidence)


def make_oracle(config: settings.Config, shift: Shift, home: RunDir) -> Oracle:
    """Build the oracle; ``auto`` is the ground truth if the data has it, else human annotators."""
    check_oracle(config.oracle)
    name = config.oracle.name
    if name == "auto":
        name = "people" if shift.truth is None else "truth"
    if name == "truth":
        if shift.truth is None:
            raise UserError(
                "the oracle 'truth' needs the target's labels, but this data has none; use --oracle "
                "people, or --truth if the target's subfolders are classes"
            )
        if config.oracle.knobs:
            raise UserError(
                f"the oracle 'truth' has no parameters, but oracle.knobs is {config.oracle.knobs}; remove "
                "it, or use --oracle people"
            )
        return Truth(shift.truth, config.task.resolution)
    if name == "people":
        return _people(config, shift, home)
    own: Callable[..., Oracle] = look_up("oracle", {}, name)
    return bind("oracle", name, own, 1, config.oracle.knobs)(shift)


def _people(config: settings.Config, shift: Shift, home: RunDir) -> People:
    sizes = bought_sizes(shift.pool, config.task.resolution) if shift.source.of_pixels else None
    strategy: Strategy | Query = look_up("query", QUERIES, config.query.name)
    why = strategy.summary if isinstance(strategy, Strategy) else Strategy(strategy).summary
    time = time_of(config.ask.budget, config.ask.seconds, config.ask.growth)

    def left(number: int) -> float | None:
        """Return the annotation time in seconds that is left before a round."""
        if time is None:
            return None
        ledger, before = home.bought(), number - 1
        return time.left(ledger.seconds(before), ledger.units(before), ledger.timed(before))

    return People(
        home.questions,
        shift.pool,
        shift.classes,
        sizes,
        unit=config.task.bought if sizes is not None else "image",
        notes=home.notes,
        query=config.query.name,
        why=why,
        seconds=left,
        **config.oracle.knobs,
    )


ORACLES = ("auto", "truth", "people")


def check_oracle(oracle: settings.Part) -> None:
    """Resolve an oracle and check its parameters."""
    if oracle.name == "truth" and oracle.knobs:
        raise UserError(
            f"the oracle 'truth' has no parameters, but oracle.knobs is {oracle.knobs}; remove it"
        )
    if oracle.name in ("auto", "people"):
        build("oracle", oracle, bind("oracle", oracle.name, ruling, 0, oracle.knobs))
    if oracle.name not in ORACLES:
        bind(
            "oracle",
            oracle.name,
            look_up("oracle", dict.fromkeys(ORACLES, Truth), oracle.name),
            1,
            oracle.knobs,
        )


def make_views(config: settings.Config) -> Views:
    """Build the views; ``labelled`` defaults to ``source``."""
    views = config.views
    made = {
        name: View(**getattr(views, name).model_dump())
        for name in ("source", "unlabelled", "scoring", "test")
    }
    labelled = made["source"] if views.labelled is None else View(**views.labelled.model_dump())
    strong = None if views.strong is None else View(**views.strong.model_dump())
    return Views(labelled=labelled, strong=strong, **made)


def make_plan(config: settings.Config, shift: Shift) -> Plan:
    """Build the run plan: training length, rounds and number of labels per round."""
    after = settings.ask_epochs(config)
    train, ask, pool = config.train, config.ask, shift.pool
    pixels = shift.source.of_pixels and config.task.bought != "image"
    time = time_of(ask.budget, ask.seconds, ask.growth)
    budget: tuple[int, ...] = ()
    if time is not None:
        pixels = False
    elif pixels:
        areas = bought_sizes(pool, config.task.resolution).prod(1).tolist()
        each = split_pixels(ask.budget, areas, len(after), ask.rounding)
        budget = tuple(sum(parts) for parts in zip(*each, strict=True))
    else:
        budget = split_budget(ask.budget, len(pool), len(after), ask.rounding, ask.growth)
    steps = train.steps_per_epoch or steps_in_epoch(len(shift.source), len(pool), train.batch_size)
    return Plan(
        epochs=train.epochs,
        ask_after=after,
        budget=budget,
        pixels=ask.budget if pixels else None,
        rounding=ask.rounding,
        time=time,
        batch_size=train.batch_size,
        steps_per_epoch=train.steps_per_epoch,
        labelled_batches=train.labelled_batches,
        together=train.together,
        source_sampling=train.source_sampling,
        optimisation=Optimisation(
            lr=train.lr,
            momentum=train.momentum,
            nesterov=train.nesterov,
            weight_decay=train.weight_decay,
            clip=train.clip,
            multipliers=train.multipliers,
        ),
        schedule=make_schedule(config, steps * train.epochs),
        source_weight=train.source_weight,
        measure_every=config.evaluation.every,
        scoring_batch=config.engine.scoring_batch,
        snapshot=config.engine.snapshot,
        seed=config.seed,
    )


def make_query(config: settings.Config) -> Query | Strategy:
    """Build the query with its parameters; a plain user function gets all columns of the model."""
    name = config.query.name
    found: Strategy | Query = look_up("query", QUERIES, name)
    if not isinstance(found, Strategy):
        return bind("query", name, found, 1, config.query.knobs)
    bind("query", name, found.query, 1, config.query.knobs)
    return found.bound(config.query.knobs)


def make_schedule(config: settings.Config, steps: int) -> Schedule:
    """Build the learning-rate schedule for a training of ``steps`` steps.

    The default horizon of ``poly`` is 1.25 times the training, as published.
    """
    part = config.train.schedule
    function = look_up("schedule", SCHEDULES, part.name)
    knobs = dict(part.knobs)
    if function is poly:
        knobs.setdefault("horizon", math.ceil(BEYOND * steps))
    return bind("schedule", part.name, function, 1, knobs)


BEYOND = 1.25  # horizon of `poly` over training steps; published: 62 500 for 50 000


def make_objective(config: settings.Config) -> Training:
    """Build the objective with its parameters."""
    name, knobs = config.objective.name, config.objective.knobs
    found: Objective | Training = look_up("objective", OBJECTIVES, name)
    training = as_training(found)
    check_knobs("objective", name, training.signature, 2, knobs)
    return training.bound(knobs)


def settled(config: settings.Config) -> settings.Config:
    """Return the config with its precision, part of the run's identity, resolved for this machine."""
    precision = settle_precision(config.engine.precision, config.engine.device)
    return config.model_copy(update={"engine": config.engine.model_copy(update={"precision": precision})})


def make_speed(config: settings.Config) -> Speed:
    """Build the performance options."""
    engine = config.engine
    return Speed(engine.images_on, engine.channels_last, engine.fused, engine.graphs, engine.compiled)


def with_aspects(shift: Shift, views: Views) -> Shift:
    """Return the data with original aspect ratios where a view needs them."""
    source, test = shift.source, shift.test
    own = test is not None and test.images is shift.pool
    used = (views.labelled, views.unlabelled, views.stronger, views.scoring, *([views.test] if own else []))
    pool = with_aspect(shift.pool, *used)
    if test is not None:
        test = replace(test, images=pool if own else with_aspect(test.images, views.test))
    source = replace(source, images=with_aspect(source.images, views.source))
    return replace(shift, source=source, pool=pool, test=test)


def with_aspect(images: Images, *uses: View) -> Images:
    """Return the images with aspect ratios read from their files if one of the views needs them."""
    wanted = any(view.resize == "short_side" for view in uses)
    if not wanted or images.aspect is not None or images.files is None:
        return images
    return replace(images, aspect=aspects(images.files))
