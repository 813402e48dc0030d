"""Config to parts: the only place where names are looked up and parts are built."""

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
