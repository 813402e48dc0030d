"""What a config says by itself, before any image is looked at."""

from collections.abc import Iterator

from ducats.config import Config, Part
from ducats.doctor.finding import Finding, gather

PARTS = ("data", "model", "objective", "query")


def check_settings(config: Config) -> list[Finding]:
    """Names and knobs that no part answers to, one finding for each part."""
    # Each part alone, in a config that is sound otherwise: the first slip must not hide the next.
    checks = {name: _check_part(Config(task=config.task, **{name: getattr(config, name)})) for name in PARTS}
    checks["train.schedule"] = _check_schedule(config.train.schedule)
    checks["oracle"] = _check_oracle(config.oracle)
    return [finding for name, check in checks.items() for finding in gather(check, f"the setting {name}")]


def check_options(config: Config) -> Iterator[Finding]:
    """Options that the data set cannot do without."""
    from ducats.data import DATASETS, require_options

    function = DATASETS.get(config.data.name)
    if function is not None:  # a user's own is built, and says so itself
        require_options(config.data.name, function, config.data.knobs)
    yield from ()


def check_task(config: Config) -> Iterator[Finding]:
    """Data, model or settings for images where pixels are bought, and the other way round."""
    from ducats.doctor.task import misfits

    for misfit in misfits(config):
        yield Finding("error", misfit)


def _check_part(config: Config) -> Iterator[Finding]:
    from ducats.assemble import check_names
    from ducats.models import CHECK, MODELS

    check_names(config)
    if config.model.name in CHECK and config.model.knobs.get("weights"):
        # Built, for the file must fit the backbone.
        MODELS[config.model.name](classes=2, channels=3, **config.model.knobs)
    yield from ()


def _check_schedule(schedule: Part) -> Iterator[Finding]:
    from ducats.engine.schedules import SCHEDULES
    from ducats.lookup import bind, look_up

    bind("schedule", schedule.name, look_up("schedule", SCHEDULES, schedule.name), 1, schedule.knobs)
    yield from ()


def _check_oracle(oracle: Part) -> Iterator[Finding]:
    from ducats.assemble import check_oracle

    check_oracle(oracle)
    yield from ()
