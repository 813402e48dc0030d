"""Settings: described once, read somewhere, validated in Python as in YAML."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

import ducats
from ducats import settings
from ducats.config import Config, load_config
from ducats.config.loader import to_yaml
from ducats.config.schema import DEFAULT_VIEWS, ModelConfig
from ducats.dirichlet import EVIDENCE_FUNCTIONS
from ducats.run.factory import load_data
from ducats.training.step import TARGET_BATCHING
from ducats.training.streams import LABELLED_BATCHES
from ducats.utils.errors import UserError

ROOT = Path(ducats.__file__).parent
DECLARED_IN = (ROOT / "settings.py", ROOT / "config" / "schema.py")


def walk(kind: Any, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting with its path; of views, only the source's are expanded."""
    for name, info in kind.__pydantic_fields__.items():
        section = next(
            (k for k in (info.annotation, *get_args(info.annotation)) if hasattr(k, "__pydantic_fields__")),
            None,
        )
        if section is None or (section is settings.View and name != "source"):
            yield f"{prefix}{name}", info
        else:
            yield from walk(section, f"{prefix}{name}.")


def test_every_setting_is_described() -> None:
    found = dict(walk(Config))
    assert {"seed", "train.schedule.name", "views.source.crop", "views.test"} <= found.keys()
    assert [path for path, info in found.items() if not info.description] == []


def test_every_setting_is_read() -> None:
    """Every name occurs as an attribute, or outside its declaration as a string, e.g. for `getattr`."""
    read: set[str] = set()
    for path in ROOT.rglob("*.py"):
        code = path.read_text(encoding="utf-8")
        read |= set(re.findall(r"\.(\w+)", code))
        read |= set() if path in DECLARED_IN else set(re.findall(r'"(\w+)"', code))
    assert [path for path, _ in walk(Config) if path.split(".")[-1] not in read] == []


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (settings.LabelledBatches, LABELLED_BATCHES),
        (settings.TargetBatching, TARGET_BATCHING),
        (dict(walk(ModelConfig))["evidence"].annotation, EVIDENCE_FUNCTIONS),
    ],
)
def test_valid_names_are_those_implemented(values: Any, known: Any) -> None:
    assert set(get_args(values)) == set(known)


def test_sections_of_a_config_are_the_types_that_components_take() -> None:
    config = load_config(
        ["segmentation"],
        [
            "task={unit: region, region_side: 5, resolution: original, label_downsampling: nearest}",
            "evaluation={resolution: network, miou_star_exclude: [wall, pole]}",
        ],
    )
    assert isinstance(config.task, settings.TaskOptions)
    assert isinstance(config.evaluation, settings.EvaluationOptions)
    assert isinstance(config.train, settings.Optimisation)
    assert isinstance(config.engine, settings.PerformanceOptions)
    assert (config.task.resolved_unit, config.task.region_side) == ("region", 5)
    assert not config.task.labels_whole_images
    assert replace(config.task, unit="image").labels_whole_images
    assert config.evaluation.miou_star_exclude == ("wall", "pole")


def test_defaults_of_python_and_yaml_are_the_same() -> None:
    config, plan = Config(), ducats.RunPlan()
    shared = [*fields(settings.TrainingOptions), *fields(settings.ScoringOptions)]
    shared = [f for f in shared if f.name != "target_batching"]  # see `with_default_method`
    sections = vars(config.train) | vars(config.engine)
    assert {f.name: getattr(plan, f.name) for f in shared} == {f.name: sections[f.name] for f in shared}
    assert plan.rounding == config.acquisition.rounding
    assert plan.seed == config.seed


MAPPINGS = ("params", "source_weight", "lr_multipliers")  # each is one setting
OTHER_VALUES: tuple[Any, ...] = (
    *(True, False, 1, 2, 3, 60, 0.25, 0.5, "other", "2%", "5%", "gain<1"),
    *([1, 2], [2, 3], [0.5, 0.75], [0.1, 0.1, 0.1, 0.1], ["other"], {"other": 1.0}, {0: 0.5}),
)


def leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting of a resolved config with its path; parameters of a component are one setting."""
    for name, value in section.items():
        if isinstance(value, dict) and name not in MAPPINGS:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def choices(kind: Any) -> Iterator[Any]:
    """Yield the values of a Literal, also within a union."""
    for argument in get_args(kind):
        yield from (
            choices(argument) if get_args(argument) else [argument] if isinstance(argument, str) else []
        )


# Settings that are the default of others.
DEFAULT_OF = {
    # The default method has settings of its own for each task.
    "task.name": {"objective.params", "query.params", "train.target_batching"},
    "views.size": {
        f"views.{name}.size" for name in ("source", "labelled", "unlabelled", "scoring", "test", "strong")
    },
}


def test_overriding_a_field_changes_no_other() -> None:
    kinds: dict[str, Any] = {path: info.annotation for path, info in walk(Config)}
    settings, changeable = set[str](), set[str]()
    for base in ((), ("segmentation",), ("parity/visda",)):
        default = load_config(base)
        # Views that are null by default, with the values that they stand for.
        views: dict[str, Any] = {
            "labelled": default.views.labelled_or_source,
            "strong": default.views.strong_or_default,
        }
        explicit = default.model_copy(update={"views": replace(default.views, **views)})
        for config, given in (
            (default, []),
            (explicit, [f"views.{n}.flip={v.flip}" for n, v in views.items()]),
        ):
            before = dict(leaves(config.model_dump(mode="json")))
            assert _changed_settings(base, given, before) == set()
            paths = [
                path for path in before if not given or path.startswith(("views.labelled.", "views.strong."))
            ]
            settings |= set(paths)
            for path in set(paths) - {"views.labelled", "views.strong"}:
                # A new name may rename the method, and drops the parameters of the previous component.
                more = {"method", path.replace(".name", ".params")} if path.endswith(".name") else set[str]()
                more |= DEFAULT_OF.get(path, set())
                kind = kinds.get(path) or kinds[f"views.source.{path.split('.')[-1]}"]
                for value in (*choices(kind), *OTHER_VALUES):
                    setting = f"{path}={yaml.safe_dump(value, default_flow_style=True)}"
                    changed = _changed_settings(base, [*given, setting], before)
                    assert changed <= {path} | more, setting
                    changeable |= changed
                    if path in changed:
                        break
    assert changeable == settings - {"views.labelled", "views.strong"}


def _changed_settings(base: Sequence[str], settings: Sequence[str], before: Mapping[str, Any]) -> set[str]:
    """Return the settings that differ from `before`; none if a value is refused."""
    try:
        after = load_config(base, settings).model_dump(mode="json")
    except UserError:
        return set()
    return {path for path, value in leaves(after) if value != before.get(path)}


def test_views_take_omitted_fields_from_the_default() -> None:
    views = load_config([], ["views.source={crop: center, size: 32}"]).views
    assert views == replace(DEFAULT_VIEWS, source=replace(DEFAULT_VIEWS.source, crop="center", size=32))
    assert views.labelled_or_source == views.source
    labelled = load_config([], ["views.source.size=32", "views.labelled.flip=0"]).views.labelled
    assert labelled == replace(views.source, crop="random_resized", flip=0)
    assert ducats.StreamViews().source == ducats.View()


def test_size_of_all_views() -> None:
    views = load_config([], ["views.size=96", "views.test.size=64", "views.source.flip=0"]).views
    assert [views.source.size, views.unlabelled.size, views.scoring.size, views.test.size] == [96, 96, 96, 64]
    assert views.source == replace(DEFAULT_VIEWS.source, size=96, flip=0)
    assert (views.labelled_or_source.size, views.strong_or_default.size) == (96, 96)
    config = load_config([], ["views.size=56", "data.name=toy"])
    assert load_data(config).pool.pixels.shape[-2:] == (64, 64)
    own = load_config([], ["views.size=56", "data={name: toy, params: {size: 60}}"])
    assert load_data(own).pool.pixels.shape[-2:] == (60, 60)
    assert config.identity()["views"]["size"] == 56
    assert "size" not in load_config([]).identity()["views"]
    for size in ("views.size=4", "views.size=big"):
        with pytest.raises(UserError, match=r"views\.size"):
            load_config([], [size])
    with pytest.raises(UserError, match="has no effect"):
        load_config(["segmentation"], ["views.size=256"])


@pytest.mark.parametrize("settings", [(), ("views.size=96",), ("views.size=96", "views.test.size=64")])
def test_a_resolved_config_resolves_to_itself(settings: tuple[str, ...]) -> None:
    config = load_config(["cpu"], settings)
    assert Config.model_validate(config.identity()).identity() == config.identity()
    assert Config.model_validate(yaml.safe_load(to_yaml(config))) == config


def test_default_unit() -> None:
    assert ducats.TaskOptions().resolved_unit == "pixel"
    assert load_config([]).task.resolved_unit == "image"
    assert load_config([], ["task.name=segmentation"]).task.resolved_unit == "pixel"
    assert load_config([], ["task.unit=image"]).task.resolved_unit == "image"
    for unit in ("image", "pixel", "region", "superpixel"):
        assert load_config(["segmentation"], [f"task.unit={unit}"]).task.resolved_unit == unit


@pytest.mark.parametrize(
    ("kind", "values", "word"),
    [
        (ducats.View, {"crop": "middle"}, "'center'"),
        (ducats.View, {"resize": "short_side"}, "crop=center"),
        (ducats.View, {"flip": 2}, "flip"),
        (ducats.View, {"sise": 3}, "sise"),
        (ducats.StreamViews, {"source": ducats.View(), "test": 3}, "test"),
        (ducats.Unit, {"unit": "region", "region_side": 4}, "must be odd"),
        (ducats.TaskOptions, {"label_downsampling": "cells"}, "'cell' or 'nearest'"),
        (ducats.TaskOptions, {"resolution": "full"}, "'network' or 'original'"),
        (ducats.TaskOptions, {"unit": "regions"}, "'superpixel'"),
        (ducats.EvaluationOptions, {"every_epochs": 0}, "every_epochs"),
        (ducats.Optimisation, {"lr": 0}, "lr"),
        (ducats.RunPlan, {"source_sampling": "rare-classes"}, "'rare_classes'"),
        (ducats.RunPlan, {"labelled_batches": "odd"}, "'short_last'"),
        (ducats.RunPlan, {"target_batching": "joined"}, "'joint'"),
        (ducats.RunPlan, {"rounding": "up"}, "'ceil_per_round'"),
        (ducats.RunPlan, {"snapshot_samples": -1}, "snapshot_samples"),
        (ducats.RunPlan, {"source_weight": {1: 1.0}}, "epoch 0 must have one"),
    ],
)
def test_invalid_values_are_refused_in_python(kind: type, values: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        kind(**values)


def test_a_changed_copy_is_validated() -> None:
    with pytest.raises(ValidationError, match="flip"):
        replace(ducats.View(), flip=2)
