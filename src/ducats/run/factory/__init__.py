"""Build the components of a run from its config. Names are resolved only here."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ducats.config import Config
from ducats.data.domain import AdaptationData
from ducats.data.evaluation_split import attach_test_set, hold_out_source
from ducats.data.store import decode_on_first_use
from ducats.run.components import Components, RunPlan
from ducats.run.factory.builders import (
    audit_per_round,
    cache_of_embeddings,
    check_oracle,
    labels_per_round,
    load_data,
    make_initial_labels,
    make_model,
    make_objective,
    make_oracle,
    make_query,
    make_run_plan,
    make_schedule,
    model_params,
    prepare_for_views,
    prepare_images,
    resolve_for_machine,
    settings_of,
)
from ducats.run.factory.validation import (
    check_config,
    check_run_folder,
    check_task,
    config_checks,
    describe_params,
)
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.findings import raise_first_error

__all__ = [
    "audit_per_round",
    "build_run",
    "check_config",
    "check_oracle",
    "check_task",
    "config_checks",
    "describe_params",
    "labels_per_round",
    "load_data",
    "make_model",
    "make_objective",
    "make_oracle",
    "make_query",
    "make_run_plan",
    "make_schedule",
    "model_params",
    "prepare_for_views",
    "prepare_images",
    "resolve_for_machine",
    "settings_of",
]


def build_run(
    config: Config,
    run_folder: RunFolder,
    data: AdaptationData | None = None,
    *,
    shared_answers: Sequence[Path] = (),
) -> tuple[Components, RunPlan]:
    """Build the components and the plan of a run.

    Args:
        data: loaded data; None loads those of the config.
        shared_answers: folders of sweeps or runs. What annotators answered there is not asked again.
    """
    is_resumable = run_folder.is_resumable
    check_config(config, is_resumable=is_resumable, per_pixel=None if data is None else data.source.per_pixel)
    if data is None:
        raise_first_error(partial(check_run_folder, config, run_folder.path))
        data = load_data(config)
    raise_first_error(partial(check_task, config, data.source.per_pixel))
    data, _ = hold_out_source(data, config.evaluation.source_holdout_fraction)
    data, evaluated_on = attach_test_set(data, config.evaluation.split, config.evaluation.test_fraction)
    initial_labels = make_initial_labels(config, data, run_folder)
    plan = make_run_plan(config, data, n_initial=0 if initial_labels is None else len(initial_labels))
    params = config.data.params
    with decode_on_first_use(cache_of_embeddings(config)):
        data = prepare_for_views(
            data, config.views, cache=params.get("cache"), memory_gb=params.get("memory_gb")
        )
    components = Components(
        model=make_model(
            config,
            len(data.classes),
            int(data.source.images.pixels.shape[1]),
            is_resumable=is_resumable,
        ),
        source=data.source,
        pool=data.pool,
        oracle=make_oracle(config, data, run_folder, shared_answers),
        query=make_query(config),
        objective=make_objective(config),
        test=data.test,
        evaluated_on=evaluated_on,
        views=config.views,
        task=config.task,
        evaluation=config.evaluation,
        initial_labels=initial_labels,
    )
    return components, plan
