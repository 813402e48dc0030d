"""A data set and all that the rest of the program must know about it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ducats.data.benchmarks.benchmark import Benchmark
from ducats.data.domain import AdaptationData
from ducats.utils.errors import UserError

# Parameters with a command-line option of their own.
_PARAM_OPTIONS = {
    "path": "--manifest",
    **{name: f"--{name}" for name in ("source", "target", "test", "root", "task", "classes")},
}


@dataclass(frozen=True)
class DatasetSpec:
    """A data set and its properties."""

    load: Callable[..., AdaptationData]  # (*, params)
    per_pixel: bool | None = None  # whether labels are per pixel; None: unknown until it is loaded
    benchmark: Benchmark | None = None  # tasks, published counts and files of a benchmark
    # Files that `ducats doctor` lists without loading the data; `load` has the parameters of `folders` or
    # `manifest`. Files of a benchmark or a `SegmentationReader` are listed, too.
    file_layout: Literal["class_folders", "manifest"] | None = None

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of the data set by name."""
        return inspect.signature(self.load).parameters

    def with_default_size(self, params: Mapping[str, Any], stored_size: int | None) -> dict[str, Any]:
        """Return the parameters; a ``size`` that is not set, but accepted, is that of `views.size`."""
        if stored_size is None or "size" not in self.parameters:
            return dict(params)
        return {"size": stored_size, **params}

    def require_params(self, name: str, params: Mapping[str, Any]) -> None:
        """Raise if a required parameter is missing."""
        required = [
            p.name
            for p in self.parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        missing = [param for param in required if params.get(param) is None]
        if not missing:
            return
        options = " and ".join(
            _PARAM_OPTIONS.get(param, f"--set data.params.{param}=...") for param in missing
        )
        tasks = ""
        if "task" in missing and self.benchmark is not None:
            tasks = f"; its tasks are {', '.join(self.benchmark.tasks)}"
        raise UserError(
            f"the data set {name!r} needs {options} (or data.params.{missing[0]} in a config){tasks}"
        )

    def canonical_task(self, task: str) -> str:
        """Return a benchmark task in its canonical spelling; other tasks are returned unchanged.

        All spellings of a task then name the same run.
        """
        return (self.benchmark.canonical_task(task) if self.benchmark else None) or task
