"""Config to parts: the only place where names are looked up and parts are built."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ducats import config as settings
from ducats.budget import split_budget, split_pixels
from ducats.criteria import columns_of
from ducats.data import DATASETS, require_options
from ducats.data.decode import aspects
from ducats.data.exam import examine, hold_out_source
from ducats.data.views import View
from ducats.domain import UNLABELLED, VOID, Images, Shift
from ducats.engine.fit import Optimisation
from ducats.engine.processes import settle_precision
from ducats.engine.schedules import SCHEDULES, Schedule, poly
from ducats.engine.speed import Speed
from ducats.engine.streams import Views, steps_in_epoch
from ducats.engine.task import Task, bought_sizes
from ducats.errors import UserError
from ducats.lookup import bind, build, check_knobs, look_up
from ducats.models import BLANK, CHECK, MODELS, Evidential
from ducats.objectives import (
    OBJECTIVES,
    Batch,
    Beside,
    Labelled,
    Objective,
    Remembered,
    Training,
    as_training,
)
from ducats.oracles import Oracle, People, Truth
from ducats.parts import Parts, Plan
from ducats.queries import QUERIES, Query, Strategy
from ducats.randomness import global_seed
from ducats.rows import Output, Rows, Slate, name_of
from ducats.rundir import RunDir
from ducats.units import Unit, spend, summary


def load_data(config: settings.Config) -> Shift:
    """Read the images; truth, where there is some, stays inside the shift's own field."""
    function = look_up("data set", DATASETS, config.data.name)
    knobs = {k: Path(v) if k in PATHS and isinstance(v, str) else v for k, v in config.data.knobs.items()}
    require_options(config.data.name, function, knobs)
    return build("data set", config.data, bind("data set", config.data.name, function, 0, knobs))


PATHS = ("source", "target", "test", "path", "cache", "root")  # knobs of data sets that are paths


def make_task(config: settings.Config) -> Task:
    """What is bought where pixels have labels, and how maps are measured."""
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
    """Build the model, its random weights fixed by the run's seed.

    Args:
        config: names it.
        classes: of the data.
        channels: of the images.
        begun: whether a checkpoint brings the weights, so that none need to be read or fetched.
    """
    builder = look_up("model", MODELS, config.model.name)
    if begun:
        builder = BLANK.get(config.model.name, builder)
    for name in {"classes", "channels"} & config.model.knobs.keys():
        raise UserError(f"model.knobs.{name} comes from the data: remove it")
    known = inspect.signature(look_up("model", MODELS, config.model.name)).parameters
    if not {"classes", "channels"} <= known.keys() and not any(
        p.kind is p.VAR_KEYWORD for p in known.values()
    ):
        raise UserError(
            f"the model {config.model.name!r} is called with classes= and channels=: let it take both"
        )
    knobs = {"classes": classes, "channels": channels, **config.model.knobs}
    make = bind("model", config.model.name, builder, 0, knobs)
    with global_seed(config.seed, "model"):
        return Evidential(build("model", config.model, make), config.model.evidence)


def make_oracle(config: settings.Config, shift: Shift, home: RunDir) -> Oracle:
    """Who answers: the truth where the data has it, people where it has not."""
    check_oracle(config.oracle)
    name = config.oracle.name
    if name == "auto":
        name = "people" if shift.truth is None else "truth"
    if name == "truth":
        if shift.truth is None:
            raise UserError(
                "the oracle 'truth' needs the target's labels, and this data has none: use --oracle people, "
                "or, for a benchmark whose target folders are classes, --truth"
            )
        return Truth(shift.truth, config.task.resolution)
    if name == "people":
        sizes = bought_sizes(shift.pool, config.task.resolution) if shift.source.of_pixels else None
        return People(home.questions, shift.pool, shift.classes, sizes)
    own: Callable[..., Oracle] = look_up("oracle", {}, name)
    return bind("oracle", name, own, 1, config.oracle.knobs)(shift)


ORACLES = ("auto", "truth", "people")


def check_oracle(oracle: settings.Part) -> None:
    """Look an oracle and its knobs up; ours have none."""
    if oracle.name in ORACLES and oracle.knobs:
        raise UserError(
            f"the oracle {oracle.name!r} has no knobs, but oracle.knobs is {oracle.knobs}: remove it"
        )
    if oracle.name not in ORACLES:
        bind(
            "oracle",
            oracle.name,
            look_up("oracle", dict.fromkeys(ORACLES, Truth), oracle.name),
            1,
            oracle.knobs,
        )


def make_views(config: settings.Config) -> Views:
    """Views by stream; labelled target is looked at as the source is, unless it is told otherwise."""
    views = config.views
    made = {
        name: View(**getattr(views, name).model_dump())
        for name in ("source", "unlabelled", "scoring", "test")
    }
    strong = views.strong or views.unlabelled.model_copy(update={"randaugment": (2, 10), "cutout": 0.5})
    made["strong"] = View(**strong.model_dump())
    labelled = made["source"] if views.labelled is None else View(**views.labelled.model_dump())
    return Views(labelled=labelled, **made)


def make_plan(config: settings.Config, shift: Shift) -> Plan:
    """When to ask and for how many labels, in whole numbers."""
    after = settings.ask_epochs(config)
    train, ask, pool = config.train, config.ask, shift.pool
    pixels = shift.source.of_pixels and config.task.bought != "image"
    if pixels:
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
        batch_size=train.batch_size,
        steps_per_epoch=train.steps_per_epoch,
        labelled_batches=train.labelled_batches,
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
        seed=config.seed,
    )


def knobs_of(config: settings.Config) -> dict[str, str]:
    """The knobs of each part that a config names, with their defaults."""
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
        knobs[f"{name}.knobs"] = f"of {name_of(own)}: {given or 'none'}"
    return knobs


def check_names(config: settings.Config, *, begun: bool = False) -> None:
    """Look every name and knob up, and try query, objective and schedule, before any image is read.

    Args:
        config: what to look up.
        begun: whether the run has a checkpoint, and needs no first weights any more.
    """
    bind("data set", config.data.name, look_up("data set", DATASETS, config.data.name), 0, config.data.knobs)
    bind("model", config.model.name, look_up("model", MODELS, config.model.name), 0, config.model.knobs)
    if config.model.name in CHECK and not begun:
        build("model", config.model, partial(CHECK[config.model.name], **config.model.knobs))
    # A user's own may rightly refuse a few rows; ours take any number.
    query, objective, schedule = make_query(config), make_objective(config), make_schedule(config, 10**6)
    if config.query.name in QUERIES and isinstance(query, Strategy):
        build("query", config.query, partial(_try_query, config, query))
    if config.objective.name in OBJECTIVES:
        build("objective", config.objective, partial(_try_objective, config, objective))
    check_oracle(config.oracle)
    build("schedule", config.train.schedule, lambda: [schedule(step) + 0.0 for step in (0, 1, 10**6)])


def _try_query(config: settings.Config, query: Strategy) -> None:
    """Let a query pick from a few zeros."""
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
    """A model that says nothing but zeros, of images or of pixels."""

    def __init__(self, pixels: bool) -> None:
        super().__init__()
        self.network, self.pixels = nn.Linear(4, 2), pixels

    def forward(self, images: Tensor) -> Output:
        """Two classes, four features."""
        grid = (1, 1) if self.pixels else ()
        z, features = images.new_zeros(len(images), 2, *grid), images.new_zeros(len(images), 4, *grid)
        return Output(z, features, (2, 2) if self.pixels else None)


def _try_objective(config: settings.Config, training: Training) -> None:
    """Let an objective say its losses of a few zeros."""
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


def make_query(config: settings.Config) -> Query | Strategy:
    """The query with its knobs; a user's plain function stays one, and is given what the model has."""
    name = config.query.name
    found: Strategy | Query = look_up("query", QUERIES, name)
    if not isinstance(found, Strategy):
        return bind("query", name, found, 1, config.query.knobs)
    bind("query", name, found.query, 1, config.query.knobs)
    return found.bound(config.query.knobs)


def make_schedule(config: settings.Config, steps: int) -> Schedule:
    """The schedule with its knobs; one that ends somewhere ends a quarter beyond the training, as published.

    Args:
        config: names it.
        steps: of the whole training.
    """
    part = config.train.schedule
    function = look_up("schedule", SCHEDULES, part.name)
    knobs = dict(part.knobs)
    if function is poly:
        knobs.setdefault("horizon", math.ceil(BEYOND * steps))
    return bind("schedule", part.name, function, 1, knobs)


BEYOND = 1.25  # times the training's steps: 62 500 for 50 000


def make_objective(config: settings.Config) -> Training:
    """The objective with its knobs."""
    name, knobs = config.objective.name, config.objective.knobs
    found: Objective | Training = look_up("objective", OBJECTIVES, name)
    training = as_training(found)
    check_knobs("objective", name, training.signature, 2, knobs)
    return training.bound(knobs)


def assemble(config: settings.Config, home: RunDir, shift: Shift | None = None) -> tuple[Parts, Plan]:
    """Build everything that a run needs.

    Args:
        config: what to build.
        home: the run's folder; people's questions go there.
        shift: the data, if it was read already.
    """
    check_names(config, begun=home.begun)
    shift, _ = hold_out_source(shift or load_data(config), config.evaluation.source_share)
    shift, measured_on = examine(shift, config.evaluation.images, config.evaluation.share)
    _check_task(config, shift)
    plan, views = make_plan(config, shift), make_views(config)
    shift = with_aspects(shift, views)
    parts = Parts(
        model=make_model(
            config, len(shift.classes), int(shift.source.images.pixels.shape[1]), begun=home.begun
        ),
        source=shift.source,
        pool=shift.pool,
        oracle=make_oracle(config, shift, home),
        query=make_query(config),
        objective=make_objective(config),
        test=shift.test,
        measured_on=measured_on,
        views=views,
        task=make_task(config),
    )
    return parts, plan


def _check_task(config: settings.Config, shift: Shift) -> None:
    """Refuse settings for images where pixels have labels, and the other way round."""
    if shift.source.of_pixels != (config.task.name == "segmentation"):
        has, say = ("pixels", "-c segmentation") if shift.source.of_pixels else ("images", "-c data/NAME")
        raise UserError(
            f"the data {config.data.name!r} has labels of {has}, but task.name is {config.task.name}: begin "
            f"with {say}, which brings the fitting settings"
        )


def settled(config: settings.Config) -> settings.Config:
    """The config with what only the machine can tell: the precision, which is part of who a run is."""
    precision = settle_precision(config.engine.precision, config.engine.device)
    return config.model_copy(update={"engine": config.engine.model_copy(update={"precision": precision})})


def make_speed(config: settings.Config) -> Speed:
    """How the engine may speed itself up."""
    engine = config.engine
    return Speed(engine.images_on, engine.channels_last, engine.fused, engine.graphs, engine.compiled)


def with_aspects(shift: Shift, views: Views) -> Shift:
    """The shift with the images' own shapes, where a view wants them."""
    source, test = shift.source, shift.test
    own = test is not None and test.images is shift.pool
    used = (views.labelled, views.unlabelled, views.scoring, *([views.test] if own else []))
    pool = with_aspect(shift.pool, *used)
    if test is not None:
        test = replace(test, images=pool if own else with_aspect(test.images, views.test))
    source = replace(source, images=with_aspect(source.images, views.source))
    return replace(shift, source=source, pool=pool, test=test)


def with_aspect(images: Images, *uses: View) -> Images:
    """The images with their own shapes, read from their files, if one of these views wants them."""
    wanted = any(view.resize == "short_side" for view in uses)
    if not wanted or images.aspect is not None or images.files is None:
        return images
    return replace(images, aspect=aspects(images.files))
