"""A finished model as one ONNX graph, held against PyTorch before anyone is given it."""

import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ducats import dirichlet
from ducats.errors import UserError
from ducats.files import write_atomically
from ducats.grid import dense
from ducats.inference.plain import OUTPUTS, Graph, log1p
from ducats.models import Evidential

Arrays = Mapping[str, NDArray[Any]]
NEEDED = ("onnx", "onnxscript", "onnxruntime")
OLDEST = 18  # the first opset that torch writes
OPSET = 18
# Far above what rounding does to a deep network's logits, far below what anyone decides by.
PROBABILITY = 1e-4  # absolute
UNCERTAINTY = 1e-3  # relative, above TINY
TINY = 1e-6


class Difference(NamedTuple):
    """How far ONNX Runtime is from PyTorch at most."""

    probability: float  # absolute
    u_dis: float  # relative, above TINY
    u_data: float  # relative, above TINY
    labels: int  # so many differ
    compared: int  # so many images or pixels

    def in_words(self) -> str:
        """One sentence."""
        return (
            f"largest differences to PyTorch: probability {self.probability:.1e}, u_dis {self.u_dis:.1e} and "
            f"u_data {self.u_data:.1e} of their value, {self.labels} of {self.compared} labels"
        )


def require_onnx() -> None:
    """Say what to install, if it is not."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(
            f"an ONNX graph needs {', '.join(missing)}, not installed here: pip install 'ducats[export]'"
        )


def export_onnx(
    graph: Graph, images: Tensor, path: Path, *, opset: int = OPSET, batch: int | None = None
) -> None:
    """Write a graph to one file, with its weights inside.

    Args:
        graph: on the CPU.
        images: an example of its input, ``(N, channels, height, width)``.
        path: the file.
        opset: of ONNX's operators.
        batch: how many images the graph takes at a time; None for any number.
    """
    require_onnx()
    if opset < OLDEST:
        raise UserError(f"--opset {opset} is older than what can be written: use {OLDEST} or more")
    example = torch.zeros(batch or 2, *images.shape[1:])
    shapes = None if batch else ({0: torch.export.Dim("images")},)
    table = torch.export.default_decompositions()
    table[torch.ops.aten.log1p.default] = log1p
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter to its own authors
        try:
            program = torch.export.export(graph, (example,), dynamic_shapes=shapes).run_decompositions(table)
            written: Any = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                output_names=list(OUTPUTS),
                opset_version=opset,
                verbose=False,
            )
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            remedy = "" if batch else "; if it is the batch, fix its size with --batch 1"
            raise UserError(f"this model cannot be written as ONNX ({first}){remedy}") from error
    model = written.model_proto
    found = {one.domain: one.version for one in model.opset_import}.get("")
    if found != opset:
        raise UserError(f"--opset {opset} cannot be written, {found} can: leave it out")
    write_atomically(path, lambda file: file.write(model.SerializeToString()))


def check_onnx(
    model: Evidential, images: Tensor, path: Path, *, batch: int | None = None, flip: bool = False
) -> Difference:
    """Compare ONNX Runtime with what this library says of images, and refuse more than rounding.

    Args:
        model: what was written, on the CPU.
        images: float32 in [0, 1].
        path: the file.
        batch: how many images the file takes at a time; None for all.
        flip: the file averages with the mirror image.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    parts = list(images.split(batch or len(images)))
    found: list[dict[str, list[NDArray[Any]]]] = [{name: [] for name in OUTPUTS} for _ in range(2)]
    for part in parts:
        if batch and len(part) < batch:  # the last one, filled up
            part = torch.cat([part, part[:1].expand(batch - len(part), -1, -1, -1)])
        here = [tensor.numpy() for tensor in _said(model, part, flip)]
        there = session.run(list(OUTPUTS), {"images": part.numpy()})
        for where, arrays in zip(found, (here, there), strict=True):
            for name, array in zip(OUTPUTS, arrays, strict=True):
                where[name].append(array)
    ours, theirs = ({name: np.concatenate(arrays) for name, arrays in one.items()} for one in found)
    difference = compare(ours, theirs)
    if not acceptable(difference, ours, theirs):
        raise UserError(
            f"the ONNX graph does not say what the model says ({difference.in_words()}): do not use it; try "
            "another --opset, or another version of onnxruntime"
        )
    return difference


@torch.inference_mode()
def _said(model: Evidential, images: Tensor, flip: bool) -> list[Tensor]:
    """What ``OUTPUTS`` names, by the library's own functions."""
    model.eval()
    found: list[Tensor] = []
    for shown in (images, images.flip(-1)) if flip else (images,):
        z = dense(model(shown))
        both = dirichlet.uncertainties(z)
        values = [dirichlet.expected_probability(z), both.distribution, both.data]
        found = [(a + b.flip(-1)) / 2 for a, b in zip(found, values, strict=True)] if found else values
    return [*found, found[0].argmax(1)]


def compare(ours: Arrays, theirs: Arrays) -> Difference:
    """The largest differences; not a number counts as infinite."""
    return Difference(
        _largest(np.abs(ours["probability"] - theirs["probability"])),
        _largest(_relative(ours["u_dis"], theirs["u_dis"])),
        _largest(_relative(ours["u_data"], theirs["u_data"])),
        int((ours["label"] != theirs["label"]).sum()),
        int(ours["label"].size),
    )


def acceptable(difference: Difference, ours: Arrays, theirs: Arrays) -> bool:
    """Whether differences are rounding; two labels may differ only where both are as probable."""
    other = ours["label"] != theirs["label"]
    best = ours["probability"].max(1)
    theirs_here = np.take_along_axis(ours["probability"], theirs["label"][:, None], 1)[:, 0]
    tied = bool((best[other] - theirs_here[other] <= 2 * PROBABILITY).all())
    near = max(difference.u_dis, difference.u_data) <= UNCERTAINTY
    return difference.probability <= PROBABILITY and near and tied


def _relative(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[Any]:
    gap: NDArray[Any] = np.abs(ours - theirs) / np.maximum(np.abs(ours), TINY)
    return gap


def _largest(values: NDArray[Any]) -> float:
    return float(np.nan_to_num(values, nan=np.inf).max())
