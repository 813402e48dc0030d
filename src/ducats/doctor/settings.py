"""Check the config alone, before any data is read."""

from collections.abc import Iterator

from ducats.config import ComponentConfig, Config
from ducats.doctor.finding import Finding, collect_findings

COMPONENT_SECTIONS = ("data", "model", "objective", "query")


def check_settings(config: Config) -> list[Finding]:
    """Check names and parameters of all components, with one finding per component."""
    # Check each component in an otherwise valid config, so that one error does not hide the next.
    checks = {
        name: _check_component(Config(task=config.task, **{name: getattr(config, name)}))
        for name in COMPONENT_SECTIONS
    }
    checks["train.schedule"] = _check_schedule(config.train.schedule)
    checks["oracle"] = _check_oracle(config.oracle)
    return [
        finding
        for name, check in checks.items()
        for finding in collect_findings(check, f"the setting {name}")
    ]


def check_options(config: Config) -> Iterator[Finding]:
    """Check for missing required options of the data set."""
    from ducats.data import resolve_dataset

    resolve_dataset(config.data.name).require_params(config.data.name, config.data.params)
    yield from ()


def check_task(config: Config) -> Iterator[Finding]:
    """Check that data, model and settings fit the task, classification or segmentation."""
    from ducats.doctor.task import task_mismatches

    for mismatch in task_mismatches(config):
        yield Finding("error", mismatch)


def _check_component(config: Config) -> Iterator[Finding]:
    from ducats.models import resolve_model
    from ducats.run.factory import check_components

    check_components(config)
    model = resolve_model(config.model.name)
    if model.has_timm_backbone and config.model.params.get("weights"):
        # Build the model to check that the weights fit the backbone.
        model.build(classes=2, channels=3, **config.model.params)
    yield from ()


def _check_schedule(schedule: ComponentConfig) -> Iterator[Finding]:
    from ducats.training.schedules import SCHEDULES
    from ducats.utils.registry import bind_params, resolve

    bind_params("schedule", schedule.name, resolve("schedule", SCHEDULES, schedule.name), 1, schedule.params)
    yield from ()


def _check_oracle(oracle: ComponentConfig) -> Iterator[Finding]:
    from ducats.run.factory import check_oracle

    check_oracle(oracle)
    yield from ()
