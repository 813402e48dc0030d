"""Build the components of a run from its config. Names are resolved only here."""

from ducats.config import Config
from ducats.data.domain import AdaptationData
from ducats.data.evaluation_split import attach_test_set, hold_out_source
from ducats.run.components import Components, RunPlan
from ducats.run.factory.builders import (
    check_oracle,
    load_data,
    make_model,
    make_objective,
    make_oracle,
    make_query,
    make_run_plan,
    make_schedule,
    with_aspect_ratio,
    with_aspect_ratios,
    with_resolved_precision,
)
from ducats.run.factory.validation import check_components, describe_params
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

__all__ = [
    "build_run",
    "check_components",
    "check_oracle",
    "describe_params",
    "load_data",
    "make_model",
    "make_objective",
    "make_oracle",
    "make_query",
    "make_run_plan",
    "make_schedule",
    "with_aspect_ratio",
    "with_aspect_ratios",
    "with_resolved_precision",
]


def build_run(
    config: Config, run_folder: RunFolder, data: AdaptationData | None = None
) -> tuple[Components, RunPlan]:
    """Build the components and the plan of a run; load the data unless ``data`` is given."""
    check_components(config, is_resumable=run_folder.is_resumable)
    data, _ = hold_out_source(data or load_data(config), config.evaluation.source_holdout_fraction)
    data, evaluated_on = attach_test_set(data, config.evaluation.split, config.evaluation.test_fraction)
    _check_task_matches_data(config, data)
    plan = make_run_plan(config, data)
    data = with_aspect_ratios(data, config.views)
    components = Components(
        model=make_model(
            config,
            len(data.classes),
            int(data.source.images.pixels.shape[1]),
            is_resumable=run_folder.is_resumable,
        ),
        source=data.source,
        pool=data.pool,
        oracle=make_oracle(config, data, run_folder),
        query=make_query(config),
        objective=make_objective(config),
        test=data.test,
        evaluated_on=evaluated_on,
        views=config.views,
        task=config.task,
        evaluation=config.evaluation,
    )
    return components, plan


def _check_task_matches_data(config: Config, data: AdaptationData) -> None:
    """Raise if the task of the config does not match the labels of the data."""
    if data.source.per_pixel != (config.task.name == "segmentation"):
        label_kind, suggestion = (
            ("per-pixel", "-c segmentation") if data.source.per_pixel else ("per-image", "-c data/NAME")
        )
        raise UserError(
            f"the data {config.data.name!r} has {label_kind} labels, but task.name is {config.task.name}; "
            f"add {suggestion}, which sets the matching task"
        )
