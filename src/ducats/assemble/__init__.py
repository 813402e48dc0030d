"""Build the components of a run from its config. Names are resolved only here."""

from ducats import config as settings
from ducats.assemble.checking import check_names, knobs_of
from ducats.assemble.making import (
    check_oracle,
    load_data,
    make_model,
    make_objective,
    make_oracle,
    make_plan,
    make_query,
    make_schedule,
    make_speed,
    make_task,
    make_views,
    settled,
    with_aspect,
    with_aspects,
)
from ducats.data.exam import examine, hold_out_source
from ducats.domain import Shift
from ducats.errors import UserError
from ducats.parts import Parts, Plan
from ducats.rundir import RunDir

__all__ = [
    "assemble",
    "check_names",
    "check_oracle",
    "knobs_of",
    "load_data",
    "make_model",
    "make_objective",
    "make_oracle",
    "make_plan",
    "make_query",
    "make_schedule",
    "make_speed",
    "make_task",
    "make_views",
    "settled",
    "with_aspect",
    "with_aspects",
]


def assemble(config: settings.Config, home: RunDir, shift: Shift | None = None) -> tuple[Parts, Plan]:
    """Build the components and the plan of a run; load the data unless ``shift`` is given."""
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
    """Raise if the task of the config does not match the labels of the data."""
    if shift.source.of_pixels != (config.task.name == "segmentation"):
        has, say = (
            ("per-pixel", "-c segmentation") if shift.source.of_pixels else ("per-image", "-c data/NAME")
        )
        raise UserError(
            f"the data {config.data.name!r} has {has} labels, but task.name is {config.task.name}; add "
            f"{say}, which sets the matching task"
        )
