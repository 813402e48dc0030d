"""One run, completely described: frozen models, YAML in, strict, resolved YAML out. Needs no torch.

Later files override earlier ones, and ``key=value`` settings override files. Unknown names are errors that
name the file and the nearest known name. Parts never see any of this: ``assemble`` reads it and hands them
flat arguments.
"""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ducats.errors import UserError

Layer = Mapping[str, Any]


class Strict(BaseModel):
    """Settings that refuse what they do not know and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(Strict):
    """A part by name, with knobs that are checked against its signature."""

    name: str = Field(description="a name from the mapping of its kind, or `package.module:function`")
    knobs: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of that part")


class View(Strict):
    """How a stored image becomes the model's input."""

    crop: Literal["none", "center", "random", "resized"] = Field(
        "none", description="none; centre; random place; random place, scale and shape (RandomResizedCrop)"
    )
    size: int | None = Field(None, ge=1, description="side after the crop; null keeps the stored side")
    scale: tuple[float, float] = Field((0.08, 1.0), description="share of the area, for `resized`")
    ratio: tuple[float, float] = Field((0.75, 4 / 3), description="width over height, for `resized`")
    pad: int = Field(0, ge=0, description="edge pixels repeated on each side before a `random` crop")
    flip: float = Field(0.0, ge=0, le=1, description="probability of a left-right flip")
    jitter: tuple[float, float, float, float] = Field(
        (0.0, 0.0, 0.0, 0.0), description="brightness, contrast, saturation, hue (ColorJitter)"
    )

    @field_validator("scale", "ratio")
    @classmethod
    def _range(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1]:
            raise ValueError("a range must rise from above 0")
        return value

    @field_validator("jitter")
    @classmethod
    def _hue(cls, value: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        if min(value) < 0 or value[3] > 0.5:
            raise ValueError("jitter must not be negative, and hue at most 0.5")
        return value


class Model(Part):
    """The network and how its logits become Dirichlet parameters."""

    name: str = Field("timm", description="small_cnn, timm, or `package.module:function`")
    evidence: Literal["exp", "exp_clamped", "exp_plus_one", "softplus_plus_one"] = Field(
        "exp", description="alpha from logits; exp is the paper's"
    )


class Data(Part):
    """Where the images come from."""

    name: str = Field("folders", description="digits, folders, manifest, toy, or `package.module:function`")


class Objective(Part):
    """How to train."""

    name: str = Field("duc", description="duc, softmax, or `package.module:function`")


class Query(Part):
    """What to ask."""

    name: str = Field("duc", description="a name that `ducats queries` lists, or `package.module:function`")


class Oracle(Part):
    """Who answers."""

    name: str = Field("auto", description="truth, people, or your own; auto: truth where the data has it")


class Schedule(Part):
    """Learning rate over steps."""

    name: str = Field("inverse_decay", description="inverse_decay or constant")


class Views(Strict):
    """One view per use of the images."""

    source: View = Field(View(crop="resized", size=224, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1)))
    labelled: View | None = Field(None, description="bought target images in training; null: as the source")
    unlabelled: View = Field(View(crop="random", size=224), description="unlabelled target in training")
    scoring: View = Field(
        View(crop="center", size=224), description="the pool when it is scored; published: a random crop"
    )
    test: View = Field(View(crop="center", size=224), description="held-out images, and prediction")


class Train(Strict):
    """One training; it goes on through all questions."""

    epochs: int = Field(50, ge=1)
    batch_size: int = Field(32, ge=2, description="images of each stream in a step, over all processes")
    steps_per_epoch: int | None = Field(
        None, ge=1, description="null: the longer of source and pool at the start, in full batches"
    )
    labelled_batches: Literal["even", "short_last"] = Field(
        "even",
        description="even: bought images in batches of nearly one size; "
        "short_last: published, the last batch of a pass may be one image, doubled",
    )
    lr: float = Field(4e-3, gt=0, description="learning rate at step 0")
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = Field(True)
    weight_decay: float = Field(1e-3, ge=0, description="on everything, biases and norms included")
    multipliers: dict[str, float] | None = Field(
        None,
        description="learning-rate factor by prefix of a parameter's name; "
        "null: what the model advises (a pretrained backbone: 0.1)",
    )
    schedule: Schedule = Field(Schedule())


class Ask(Strict):
    """When to ask, and for how much."""

    budget: int | str = Field("5%", description="labels in all: a count (65), or a share of the pool (5%)")
    rounds: int | None = Field(
        None, ge=0, description="in how many questions the budget is spent; null: as many as `after`, or 5"
    )
    after: tuple[int, ...] | None = Field(
        None,
        description="epochs after which to ask; null: from 20 % to 36 % of the training, an epoch apart",
    )
    rounding: Literal["nearest_total", "ceil_per_round"] = Field(
        "nearest_total",
        description="nearest_total: round the whole, the rest goes to the last rounds; "
        "ceil_per_round: published, each round rounds up, so it spends a little more",
    )


class Engine(Strict):
    """Where and how to compute; of this, only precision and scoring_batch belong to a run's identity."""

    device: str = Field("auto", description="auto, cpu, cuda, mps")
    processes: int = Field(1, ge=1, description="processes on this machine")
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = Field("32-true")
    threads: int | None = Field(
        None, ge=1, description="CPU threads per process; null leaves torch's default"
    )
    deterministic: bool = Field(
        False,
        description="the same bits each time also on a GPU, where that is slower; a CPU gives them anyway",
    )
    scoring_batch: int = Field(256, ge=1, description="images in a batch when scoring and measuring")


class Config(Strict):
    """Everything about one run."""

    method: str = Field("duc", description="a name for tables; says nothing by itself")
    seed: int = Field(0, ge=0)
    data: Data = Field(Data())
    model: Model = Field(Model())
    objective: Objective = Field(Objective())
    query: Query = Field(Query())
    oracle: Oracle = Field(Oracle())
    train: Train = Field(Train())
    views: Views = Field(Views())
    ask: Ask = Field(Ask())
    engine: Engine = Field(Engine())

    @model_validator(mode="after")
    def _times(self) -> "Config":
        ask_epochs(self)
        return self

    def identity(self) -> dict[str, Any]:
        """What makes this run this run: all but where it is computed."""
        settings = self.model_dump(mode="json")
        settings["engine"] = {"precision": self.engine.precision, "scoring_batch": self.engine.scoring_batch}
        return settings

    def digest(self) -> str:
        """Eight characters that name the run."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def ask_epochs(config: Config) -> tuple[int, ...]:
    """Epochs after which the run asks, one per round."""
    ask, epochs = config.ask, config.train.epochs
    if ask.rounds == 0 or ask.after == ():
        return ()
    if ask.after is not None:
        _check_after(ask, epochs)
        return ask.after
    rounds = 5 if ask.rounds is None else ask.rounds
    if rounds > epochs:
        raise ValueError(f"{rounds} rounds do not fit into {epochs} epochs: lower ask.rounds")
    # The paper's 10, 12, 14, 16, 18 of 50, at any number of rounds and epochs; one epoch apart at the least.
    after: list[int] = []
    for number in range(rounds):
        wanted = max(1, round(epochs * (0.2 + 0.16 * number / max(rounds - 1, 1))))
        latest = epochs - rounds + number  # leaves room for the rounds that follow
        after.append(min(max(wanted, after[-1] + 1 if after else 0), latest))
    return tuple(after)


def _check_after(ask: Ask, epochs: int) -> None:
    assert ask.after is not None
    if list(ask.after) != sorted(set(ask.after)) or ask.after[0] < 0:
        raise ValueError(f"ask.after must rise from round to round, not {list(ask.after)}")
    if ask.after[-1] >= epochs:
        raise ValueError(
            f"ask.after names epoch {ask.after[-1]}, but training ends after epoch {epochs}: "
            "the labels of that round would never be learnt"
        )
    if ask.rounds is not None and ask.rounds != len(ask.after):
        raise ValueError(f"ask.after names {len(ask.after)} epochs, but ask.rounds is {ask.rounds}: drop one")


def load(
    files: Sequence[str | Path] = (), settings: Iterable[str] = (), extra: Layer | None = None
) -> Config:
    """Merge files, ``key=value`` settings and a last layer into one config.

    Args:
        files: YAML files, or names of the configs that come with the package (``methods/duc``, ``duc``).
        settings: ``train.lr=0.01`` and the like; values are YAML.
        extra: a nested mapping on top, from options of the command line.
    """
    layers: list[tuple[str, Layer]] = []
    for file in files:
        path = find(file)
        layers.append((str(file), _read(path)))
    layers += [(f"--set {setting}", _setting(setting)) for setting in settings]
    if extra:
        layers.append(("the command line", extra))
    merged: dict[str, Any] = {}
    for origin, layer in layers:
        _check_names(layer, Config, origin)
        merged = merge(merged, layer)
    try:
        return Config.model_validate(merged | _renamed(layers, merged))
    except ValidationError as error:
        raise UserError(_explain(error, layers)) from None


def _renamed(layers: list[tuple[str, Layer]], merged: Layer) -> dict[str, str]:
    """Another name where a later layer changed the query or objective that a method's name stands for."""
    named = max((i for i, (_, layer) in enumerate(layers) if "method" in layer), default=-1)
    at_naming: dict[str, Any] = {}
    for _, layer in layers[: named + 1]:
        at_naming = merge(at_naming, layer)

    def pairing(settings: Layer) -> tuple[str, str]:
        names = (
            Objective.model_validate(settings.get("objective", {})).name,
            settings.get("query", {}).get("name"),
        )
        return names[0], names[1] or Query().name

    try:
        before, now = pairing(at_naming), pairing(merged)
    except (ValidationError, AttributeError):
        return {}  # said better where the whole is validated
    return {} if before == now else {"method": "+".join(name.split(":")[-1] for name in now)}


def find(name: str | Path) -> Path:
    """Find a config: a file as given, or one of the package's own by name."""
    path = Path(name)
    if path.is_file():
        return path
    home = shipped()
    stem = str(name).removeprefix("configs/").removesuffix(".yaml")
    for candidate in (home / f"{stem}.yaml", *sorted(home.glob(f"*/{stem}.yaml"))):
        if candidate.is_file():
            return candidate
    known = sorted(str(p.relative_to(home).with_suffix("")) for p in home.rglob("*.yaml"))
    near = difflib.get_close_matches(stem, [*known, *(k.split("/")[-1] for k in known)], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(f"no config {str(name)!r}: {hint}it is no file, and the package has: {', '.join(known)}")


def shipped() -> Path:
    """The folder of the configs that come with the package."""
    return Path(str(resources.files("ducats"))) / "configs"


def to_yaml(config: Config) -> str:
    """The resolved config, nothing left to defaults."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def explain(part: BaseModel | None = None, prefix: str = "") -> list[tuple[str, str, str]]:
    """Every setting as (name, default, meaning)."""
    part = part or Config()
    lines = []
    for name, info in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, BaseModel) and (name == "source" or not isinstance(value, View)):
            lines += explain(value, f"{prefix}{name}.")
            continue
        plain = value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, View) else value
        choices = (
            " | ".join(map(str, get_args(info.annotation))) if get_origin(info.annotation) is Literal else ""
        )
        meaning = "; ".join(text for text in (info.description, choices and f"one of {choices}") if text)
        lines.append((f"{prefix}{name}", json.dumps(plain), meaning))
    return lines


def merge(below: Layer, above: Layer) -> dict[str, Any]:
    """Lay one mapping over another.

    A layer that names another part (``name:``) brings its own knobs; those of the part named below would
    not fit.

    >>> merge({"query": {"name": "duc", "knobs": {"kappa": 5}}}, {"query": {"name": "random"}})
    {'query': {'name': 'random'}}
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            renamed = "name" in value and value["name"] != old.get("name", value["name"])
            merged[key] = {**value} if renamed else merge(old, value)
        else:
            merged[key] = value
    return merged


def _read(path: Path) -> Layer:
    try:
        layer = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if layer is None:
        return {}
    if not isinstance(layer, Mapping):
        raise UserError(f"{path} must hold `key: value` settings, not {type(layer).__name__}")
    return layer


def _setting(setting: str) -> Layer:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise UserError(f"--set {setting!r} is not of the form key=value, e.g. --set train.lr=0.01")
    try:
        layer: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set {setting}: the value is not YAML: {' '.join(str(error).split())}") from None
    for name in reversed(key.strip().split(".")):
        layer = {name: layer}
    return dict(layer)


def _check_names(layer: Layer, schema: type[BaseModel], origin: str, prefix: str = "") -> None:
    """Refuse unknown names layer by layer, so that the message can say which file holds the slip."""
    for key, value in layer.items():
        if key not in schema.model_fields:
            near = difflib.get_close_matches(str(key), schema.model_fields, n=1)
            hint = (
                f"did you mean '{prefix}{near[0]}'?" if near else f"known: {', '.join(schema.model_fields)}"
            )
            raise UserError(f"{origin}: there is no setting '{prefix}{key}'; {hint}")
        inner = _model_of(schema.model_fields[key].annotation)
        if inner is not None and isinstance(value, Mapping):
            _check_names(value, inner, origin, f"{prefix}{key}.")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def _explain(error: ValidationError, layers: list[tuple[str, Layer]]) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    if not where:
        return what
    said = next((origin for origin, layer in reversed(layers) if _has(layer, first["loc"])), None)
    return f"{said + ': ' if said else ''}{where}: {what}, got {first['input']!r}"


def _has(layer: Any, path: tuple[int | str, ...]) -> bool:
    """Whether a layer sets this setting, or something in it."""
    for name in path:
        if not isinstance(layer, Mapping):
            return True
        if name not in layer:
            return False
        layer = layer[name]
    return True
