"""Command-line options of a run. Imports torch only if there are data options."""

import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ducats.utils.errors import UserError

if TYPE_CHECKING:  # keeps `--help` fast
    from ducats.config import Config


SharedAnswers = Annotated[
    list[Path],
    Parameter(
        negative=(),
        help="Folder of an earlier run or sweep: annotators are not asked again for what they answered "
        "there, about the same image and classes. These labels count towards the budget. Repeatable.",
    ),
]
ConfigFiles = Annotated[
    list[str],
    Parameter(
        name=["--config", "-c"],
        negative=(),
        help="A YAML file, or the name of a config in the package (segmentation, data/digits). Repeatable.",
    ),
]


@Parameter(name="*")
@dataclass(kw_only=True)
class DataOptions:
    """Options that say where the data is, the same for a run and for a sweep."""

    source: Annotated[
        Path | None,
        Parameter(
            help="Folder of labelled source images, one subfolder per class; segmentation: images/ and "
            "labels/. Without it, the first labels are those of target images; then give --classes."
        ),
    ] = None
    target: Annotated[
        Path | None,
        Parameter(help="Folder of unlabelled target images; segmentation: images/."),
    ] = None
    test: Annotated[
        Path | None,
        Parameter(help="Folder of held-out labelled target images, with the layout of the source."),
    ] = None
    ground_truth: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Let the oracle use the target's labels: its subfolders are classes (segmentation: "
            "labels/).",
        ),
    ] = False
    new_classes: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Let target and test have classes that the source lacks; a run adds such a class with its "
            "first label.",
        ),
    ] = False
    classes: Annotated[
        str | None,
        Parameter(
            help='Names of the classes, separated by commas ("cat, dog, other"), or a file with one per '
            "line; needed only without a source. Segmentation: class list, one line per value in the label "
            "files: an id and a name (0 road), or a colour and a name (128 64 128 road). The name void marks "
            "pixels without a class."
        ),
    ] = None
    manifest: Annotated[
        Path | None,
        Parameter(
            help="CSV or Parquet file with columns key, path, domain, label, split; replaces the folders."
        ),
    ] = None
    strict: Annotated[
        bool,
        Parameter(negative=(), help="Refuse data with unreadable files; default: skip and list them."),
    ] = False
    root: Annotated[Path | None, Parameter(help="Folder of the benchmark given by -c data/NAME.")] = None


@Parameter(name="*")
@dataclass(kw_only=True)
class RunOptions(DataOptions):
    """Options of a run. Later ones win: config files in order, then --set, then the other options."""

    config: ConfigFiles = field(default_factory=list)
    method: Annotated[
        str | None,
        Parameter(
            help="Short for -c methods/NAME: ducats (ours, the default), duc (the paper), random, clue, "
            "source-only, ... See `ducats methods`."
        ),
    ] = None
    backbone: Annotated[
        str | None,
        Parameter(
            help="Sets backbone, optimiser and learning rates: a recipe (resnet, convnext, vit, dinov2, "
            "dinov3, clip, siglip, offline), short for -c backbones/NAME, or any timm model, e.g. "
            "vit_base_patch14_dinov2, with the recipe of its family."
        ),
    ] = None
    set: Annotated[
        list[str],
        Parameter(negative=(), help="A setting as key=value, e.g. train.lr=0.01. Repeatable."),
    ] = field(default_factory=list)
    task: Annotated[
        str | None,
        Parameter(
            help="Source and target domain of a benchmark, e.g. A-W (office31) or Ar-Cl (office-home)."
        ),
    ] = None
    oracle: Annotated[
        str | None, Parameter(help="Where target labels come from: human, ground_truth, or auto.")
    ] = None
    start_from: Annotated[
        Path | None,
        Parameter(
            help="Folder of an earlier run, or of live labelling: start with its labels, which count towards "
            "the budget, and with its data, model and method where the options give no others."
        ),
    ] = None
    budget: Annotated[
        str | None,
        Parameter(
            help="Total number of labels: a count (65) or a percentage of the pool (5%); for pixels also a "
            "count per image (40/image); or annotation time (30min, 1.5h)."
        ),
    ] = None
    audit: Annotated[
        str | None,
        Parameter(
            help="How many of the labels are for images or pixels drawn at random, which are not trained on "
            "and give the accuracy with an interval: a count, or auto (a tenth and at least 20, if there is "
            "no test set)."
        ),
    ] = None
    until: Annotated[
        str | None,
        Parameter(
            help="Ask for no more labels once the audit shows this with 95 % certainty: 'gain<0.5' (points "
            "of the last round), 'accuracy>95%' or, in segmentation, 'miou>60%'."
        ),
    ] = None
    rounds: Annotated[int | None, Parameter(help="Number of rounds over which the budget is split.")] = None
    epochs: Annotated[int | None, Parameter(help="Number of training epochs.")] = None
    finetune: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Train the whole network, short for --set model.freeze=none. Without a GPU, the default is "
            "to embed each image once with the pretrained backbone and to train only the head.",
        ),
    ] = False
    seed: Annotated[int | None, Parameter(help="Random seed.")] = None
    device: Annotated[str | None, Parameter(help="auto, cpu, cuda or mps.")] = None
    processes: Annotated[
        int | None,
        Parameter(
            name=["--devices", "--processes"],
            help="Processes per machine, one per GPU; torchrun and srun set it themselves.",
        ),
    ] = None
    nodes: Annotated[
        int | None, Parameter(help="Number of machines; torchrun or srun starts the same command on each.")
    ] = None

    def load(self, resumed: Path | None = None) -> "Config":
        """Return the resolved config.

        Args:
            resumed: folder of a run that may have started; it keeps its method if the options name none.
        """
        from ducats.config import find_recipe, load_config

        recipe = find_recipe(self.backbone) if self.backbone else None
        files = [
            *self.config,
            *([f"methods/{self.method}"] if self.method else []),
            *([recipe] if recipe else []),
        ]
        load = partial(
            load_config,
            files,
            self.set,
            default_method=_method_of_run(resumed),
            base=self._earlier_settings(resumed),
        )
        run_layer = self._run_layer()
        backbone = self.backbone
        if backbone and recipe == f"backbones/{backbone}":
            # The recipe names it; but if --set names another model, it was dropped.
            is_set = "backbone" in load(run_layer).model.params
            backbone = None if is_set else load_config(files).model.params["backbone"]
        if backbone:
            run_layer["model"] = {**run_layer.get("model", {}), "params": {"backbone": backbone}}
        resolved = load({**run_layer, **self._data_layer(load(run_layer))})
        resolved = _with_freeze_of_run(resolved, resumed)
        if (self.root or self.task) and not _takes(resolved, "root", "task"):
            raise UserError(
                f"--root and --task are for a benchmark, but the data set is {resolved.data.name!r}; choose "
                "a benchmark, e.g. with -c data/office31, and omit --source and --target"
            )
        return _with_canonical_task(resolved) if benchmark_task(resolved) else resolved

    def _earlier_settings(self, resumed: Path | None) -> dict[str, Any]:
        """Return the settings of the run that is given by --start-from, without its schedule and machine.

        A run that is resumed does not need the earlier one: it has its settings.
        """
        from ducats.runfolder.run_folder import RunFolder

        if self.start_from is None:
            return {}
        is_resumed = resumed is not None and RunFolder(resumed).is_resumable
        settings = RunFolder(resumed if is_resumed and resumed is not None else self.start_from).identity
        if "method" not in settings:  # made from Python
            return {}
        dropped = {"acquisition", "engine", *(("model", "views", "train") if self.backbone else ())}
        kept = {name: section for name, section in settings.items() if name not in dropped}
        schedule = {"model": ("freeze",), "views": ("embedded",), "train": ("epochs", "steps_per_epoch")}
        for name, fields in schedule.items():
            if name in kept:
                kept[name] = {key: value for key, value in kept[name].items() if key not in fields}
        return kept

    def _run_layer(self) -> dict[str, Any]:
        """Return the options other than those of the data as a layer of settings."""
        layer = {
            "oracle": _drop_none(name=self.oracle),
            "acquisition": _drop_none(
                budget=self.budget,
                audit=_parse_audit(self.audit),
                until=self.until,
                rounds=self.rounds,
                start_from=self.start_from and _absolute(self.start_from),
            ),
            "train": _drop_none(epochs=self.epochs),
            "model": {"freeze": "none"} if self.finetune else {},
            "engine": _drop_none(device=self.device, processes=self.processes, nodes=self.nodes),
            **_drop_none(seed=self.seed),
        }
        return {key: value for key, value in layer.items() if value != {}}

    def _data_layer(self, config: "Config") -> dict[str, Any]:
        """Return the data options as a layer of settings.

        Args:
            config: the config without the data options; its task decides how folders are read.
        """
        if self.manifest and (self.source or self.target or self.test or self.ground_truth):
            raise UserError("give either --manifest or --source, --target, --test, --ground-truth, not both")
        is_segmentation = config.task.name == "segmentation"
        # Absolute paths make a run independent of the working directory.
        paths = {"source": self.source, "target": self.target, "test": self.test}
        params: dict[str, Any] = {name: _absolute(path) for name, path in paths.items() if path is not None}
        if self.classes is not None:
            from ducats.utils.class_names import parse_class_names

            params["classes"] = (
                list(parse_class_names(self.classes))
                if not is_segmentation
                else _absolute(Path(self.classes))
            )
        if self.ground_truth:
            params["ground_truth"] = True
        if self.new_classes:
            if is_segmentation:
                raise UserError(
                    "--new-classes is for class folders; in segmentation, --classes has all classes, also "
                    "those that the source lacks"
                )
            params["new_classes"] = True
        data: dict[str, Any] = {}
        if params:
            folders = "segmentation_folders" if is_segmentation else "folders"
            # The usual case first: to know what another data set takes, torch is imported.
            takes_folders = config.data.name != folders and _takes(config, "source")
            data = {"name": config.data.name if takes_folders else folders, "params": params}
        if self.manifest:
            data = {
                "name": "manifest",
                "params": {"path": _absolute(self.manifest)}
                | _drop_none(new_classes=self.new_classes or None),
            }
        benchmark_params = _drop_none(root=self.root and _absolute(self.root), task=self.task)
        if benchmark_params:  # applies to any data set
            data = {**data, "params": {**data.get("params", {}), **benchmark_params}}
        if self.strict:
            data["strict"] = True
        return {"data": data} if data else {}


def _parse_audit(text: str | None) -> int | str | None:
    """Return the value of --audit: a count, or auto."""
    if text is None or text == "auto":
        return text
    if not text.isdecimal():
        raise UserError(f"--audit must be a number of labels or auto, not {text!r}")
    return int(text)


def _method_of_run(folder: Path | None) -> dict[str, Any] | None:
    """Return the method, objective and query of a run that was started; None if there is none."""
    from ducats.config.layers import split_method
    from ducats.runfolder.run_folder import RunFolder

    if folder is None or not (run_folder := RunFolder(folder)).is_resumable:
        return None
    settings = run_folder.identity
    return split_method(settings)[0] if "method" in settings else None  # a run made from Python has none


def _with_freeze_of_run(config: "Config", folder: Path | None) -> "Config":
    """Return the config; if it leaves `model.freeze` to the machine, with that of the run in this folder."""
    from ducats.runfolder.run_folder import RunFolder

    if config.model.freeze != "auto" or folder is None or not (run_folder := RunFolder(folder)).is_resumable:
        return config
    model = run_folder.identity.get("model", {})
    if "name" not in model:  # made from Python
        return config
    # Runs of earlier versions train the whole network.
    return config.model_copy(update={"model": replace(config.model, freeze=model.get("freeze", "none"))})


def _takes(config: "Config", *params: str) -> bool:
    """Return whether the data set has one of these parameters."""
    from ducats.data.registry import resolve_dataset

    return any(param in resolve_dataset(config.data.name).parameters for param in params)


def benchmark_task(config: "Config") -> str:
    """Return the benchmark task of a config, or an empty string."""
    task = config.data.params.get("task")
    return task if isinstance(task, str) else ""


def _with_canonical_task(config: "Config") -> "Config":
    """Return the config with the canonical spelling of its task, so that all spellings give the same run."""
    from ducats.data.registry import resolve_dataset

    task = resolve_dataset(config.data.name).canonical_task(benchmark_task(config))
    params = {**config.data.params, "task": task}
    return config.model_copy(update={"data": replace(config.data, params=params)})


def default_run_folder(config: "Config") -> Path:
    """Return the default folder of a run."""
    task = re.sub(r"[^\w.]+", "-", benchmark_task(config)).strip("-")
    method = re.sub(r"[^\w.+%]+", "-", config.method).strip("-")  # may contain a budget such as 5%
    names = (config.data.name.split(":")[-1], task, method, config.digest())
    return Path("runs") / "-".join(name for name in names if name)


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())


def _drop_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
