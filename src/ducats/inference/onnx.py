"""Export a model as an ONNX graph and check it against PyTorch."""

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
from ducats.inference.plain import OUTPUTS, Graph, log1p
from ducats.models import EvidentialModel
from ducats.upsampling import upsample

Arrays = Mapping[str, NDArray[Any]]
NEEDED = ("onnx", "onnxscript", "onnxruntime")
OLDEST = 18  # oldest opset that torch can write
OPSET = 18
# Tolerances: far above the rounding error of a deep network, far below any difference that matters.
PROBABILITY = 1e-4  # absolute
UNCERTAINTY = 1e-3  # relative, above TINY
TINY = 1e-6


class Difference(NamedTuple):
    """Largest differences between ONNX Runtime and PyTorch."""

    probability: float  # absolute
    u_dis: float  # relative, above TINY
    u_data: float  # relative, above TINY
    labels: int  # number of labels that differ
    compared: int  # number of images or pixels

    def in_words(self) -> str:
        """Describe the differences in one sentence."""
        return (
            f"largest differences from PyTorch: probability {self.probability:.1e}, u_dis {self.u_dis:.1e} "
            f"and u_data {self.u_data:.1e} (relative), {self.labels} of {self.compared} labels"
        )


def require_onnx() -> None:
    """Raise if a package for ONNX export is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX export needs {', '.join(missing)}; run pip install 'ducats[export]'")


def export_onnx(
    graph: Graph, images: Tensor, path: Path, *, opset: int = OPSET, batch: int | None = None
) -> None:
    """Write a graph and its weights to one ONNX file.

    Args:
        graph: must be on the CPU.
        images: example input, ``(N, channels, height, width)``.
        opset: ONNX opset version.
        batch: fixed batch size; None means any.
    """
    require_onnx()
    if opset < OLDEST:
        raise UserError(f"--opset must be at least {OLDEST}, not {opset}")
    example = torch.zeros(batch or 2, *images.shape[1:])
    shapes = None if batch else ({0: torch.export.Dim("images")},)
    table = torch.export.default_decompositions()
    table[torch.ops.aten.log1p.default] = log1p
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings are for the authors of the exporter
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
            remedy = "" if batch else "; if the cause is the dynamic batch size, try --batch-size 1"
            raise UserError(f"the model cannot be exported to ONNX ({first}){remedy}") from error
    model = written.model_proto
    found = {one.domain: one.version for one in model.opset_import}.get("")
    if found != opset:
        raise UserError(f"--opset {opset} is not supported, but {found} is; omit --opset")
    write_atomically(path, lambda file: file.write(model.SerializeToString()))


def check_onnx(
    model: EvidentialModel, images: Tensor, path: Path, *, batch: int | None = None, flip: bool = False
) -> Difference:
    """Compare ONNX Runtime with PyTorch; raise if they differ by more than rounding.

    Args:
        model: the exported model, on the CPU.
        images: float32 in [0, 1].
        batch: fixed batch size of the file; None means any.
        flip: whether the graph averages with the mirror image.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    parts = list(images.split(batch or len(images)))
    found: list[dict[str, list[NDArray[Any]]]] = [{name: [] for name in OUTPUTS} for _ in range(2)]
    for part in parts:
        if batch and len(part) < batch:  # pad the last batch
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
            f"the ONNX graph disagrees with the model ({difference.in_words()}); try another --opset or "
            "another version of onnxruntime"
        )
    return difference


@torch.inference_mode()
def _said(model: EvidentialModel, images: Tensor, flip: bool) -> list[Tensor]:
    """Compute the tensors named in ``OUTPUTS`` with the functions of this library."""
    model.eval()
    found: list[Tensor] = []
    for shown in (images, images.flip(-1)) if flip else (images,):
        z = upsample(model(shown))
        both = dirichlet.uncertainties(z)
        values = [dirichlet.expected_probability(z), both.distribution, both.data]
        found = [(a + b.flip(-1)) / 2 for a, b in zip(found, values, strict=True)] if found else values
    return [*found, found[0].argmax(1)]


def compare(ours: Arrays, theirs: Arrays) -> Difference:
    """Return the largest differences; NaN counts as infinite."""
    return Difference(
        _largest(np.abs(ours["probability"] - theirs["probability"])),
        _largest(_relative(ours["u_dis"], theirs["u_dis"])),
        _largest(_relative(ours["u_data"], theirs["u_data"])),
        int((ours["label"] != theirs["label"]).sum()),
        int(ours["label"].size),
    )


def acceptable(difference: Difference, ours: Arrays, theirs: Arrays) -> bool:
    """Whether the differences are rounding errors; labels may differ only between tied classes."""
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
