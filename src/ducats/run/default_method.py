"""Fill in the default method of a run made from Python. The method is described in its config only."""

from dataclasses import replace

from ducats.config import Config
from ducats.run.components import Components, RunPlan
from ducats.run.factory.builders import make_objective, make_query


def with_default_method(components: Components, plan: RunPlan) -> tuple[Components, RunPlan]:
    """Take query, objective and `target_batching`, if not given, from the default method for the task."""
    task = "segmentation" if components.source.per_pixel else "classification"
    config = Config.model_validate({"task": {"name": task}})
    query, objective, batching = components.query, components.objective, plan.target_batching
    return (
        replace(
            components,
            query=make_query(config) if query is None else query,
            objective=make_objective(config) if objective is None else objective,
        ),
        replace(plan, target_batching=config.train.target_batching if batching is None else batching),
    )
