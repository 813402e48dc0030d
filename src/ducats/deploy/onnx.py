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
from ducats.deploy.inference_graph import ONNX_OUTPUTS, InferenceGraph, log1p_series
from ducats.models import EvidentialModel
from ducats.models.upsampling import upsample
from ducats.utils.errors import UserError
from ducats.utils.files import write_atomically

OutputArrays = Mapping[str, NDArray[Any]]
_REQUIRED_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MIN_OPSET = 18  # oldest opset that torch can write
DEFAULT_OPSET = 18
# Tolerances: far above the rounding error of a deep network, far below any difference that matters.
PROBABILITY_TOLERANCE = 1e-4  # absolute
UNCERTAINTY_TOLERANCE = 1e-3  # relative, above MIN_COMPARED_UNCERTAINTY
MIN_COMPARED_UNCERTAINTY = 1e-6


class OnnxDifference(NamedTuple):
    """Largest differences between ONNX Runtime and PyTorch."""

    probability: float  # absolute
    u_dis: float  # relative, above MIN_COMPARED_UNCERTAINTY
    u_data: float  # relative, above MIN_COMPARED_UNCERTAINTY
    n_label_differences: int  # number of labels that differ
    n_compared: int  # number of images or pixels

    def describe(self) -> str:
        """Describe the differences in one sentence."""
        return (
            f"largest differences from PyTorch: probability {self.probability:.1e}, u_dis {self.u_dis:.1e} "
            f"and u_data {self.u_data:.1e} (relative), {self.n_label_differences} of {self.n_compared} labels"
        )


def require_onnx() -> None:
    """Raise if a package for ONNX export is not installed."""
    missing = [name for name in _REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX export needs {', '.join(missing)}; run pip install 'ducats[export]'")


def export_onnx(
    graph: InferenceGraph,
    images: Tensor,
    path: Path,
    *,
    opset: int = DEFAULT_OPSET,
    batch_size: int | None = None,
) -> None:
    """Write a graph on the CPU and its weights to one ONNX file.

    ``images`` are an example of the input; a ``batch_size`` of None means any.
    """
    require_onnx()
    if opset < MIN_OPSET:
        raise UserError(f"--opset must be at least {MIN_OPSET}, not {opset}")
    example = torch.zeros(batch_size or 2, *images.shape[1:])
    dynamic_shapes = None if batch_size else ({0: torch.export.Dim("images")},)
    decompositions = torch.export.default_decompositions()
    decompositions[torch.ops.aten.log1p.default] = log1p_series
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings are for the authors of the exporter
        try:
            program = torch.export.export(
                graph, (example,), dynamic_shapes=dynamic_shapes
            ).run_decompositions(decompositions)
            onnx_program: Any = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                output_names=list(ONNX_OUTPUTS),
                opset_version=opset,
                verbose=False,
            )
        except Exception as error:
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            hint = "" if batch_size else "; if the cause is the dynamic batch size, try --batch-size 1"
            raise UserError(f"the model cannot be exported to ONNX ({message}){hint}") from error
    model = onnx_program.model_proto
    written_opset = {opset_id.domain: opset_id.version for opset_id in model.opset_import}.get("")
    if written_opset != opset:
        raise UserError(f"--opset {opset} is not supported, but {written_opset} is; omit --opset")
    write_atomically(path, lambda file: file.write(model.SerializeToString()))


def check_onnx(
    model: EvidentialModel, images: Tensor, path: Path, *, batch_size: int | None = None, flip: bool = False
) -> OnnxDifference:
    """Compare ONNX Runtime with PyTorch on the CPU; raise if they differ by more than rounding.

    ``batch_size`` and ``flip`` are those of the exported graph.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    torch_batches, onnx_batches = [], []
    for batch in images.split(batch_size or len(images)):
        if batch_size and len(batch) < batch_size:  # pad the last batch
            batch = torch.cat([batch, batch[:1].expand(batch_size - len(batch), -1, -1, -1)])
        torch_batches.append([tensor.numpy() for tensor in _torch_outputs(model, batch, flip)])
        onnx_batches.append(session.run(list(ONNX_OUTPUTS), {"images": batch.numpy()}))
    torch_outputs, onnx_outputs = (
        dict(zip(ONNX_OUTPUTS, map(np.concatenate, zip(*batches, strict=True)), strict=True))
        for batches in (torch_batches, onnx_batches)
    )
    difference = compare_outputs(torch_outputs, onnx_outputs)
    if not is_rounding(difference, torch_outputs, onnx_outputs):
        raise UserError(
            f"the ONNX graph disagrees with the model ({difference.describe()}); try another --opset or "
            "another version of onnxruntime"
        )
    return difference


@torch.inference_mode()
def _torch_outputs(model: EvidentialModel, images: Tensor, flip: bool) -> list[Tensor]:
    """Compute the tensors named in ``ONNX_OUTPUTS`` with the functions of this library."""
    model.eval()
    outputs: list[Tensor] = []
    for view in (images, images.flip(-1)) if flip else (images,):
        z = upsample(model(view))
        uncertainties = dirichlet.uncertainties(z)
        values = [dirichlet.expected_probability(z), uncertainties.distribution, uncertainties.data]
        outputs = [(a + b.flip(-1)) / 2 for a, b in zip(outputs, values, strict=True)] if outputs else values
    return [*outputs, outputs[0].argmax(1)]


def compare_outputs(torch_outputs: OutputArrays, onnx_outputs: OutputArrays) -> OnnxDifference:
    """Return the largest differences; NaN counts as infinite."""
    return OnnxDifference(
        _max_or_inf(np.abs(torch_outputs["probability"] - onnx_outputs["probability"])),
        _max_or_inf(_relative_difference(torch_outputs["u_dis"], onnx_outputs["u_dis"])),
        _max_or_inf(_relative_difference(torch_outputs["u_data"], onnx_outputs["u_data"])),
        int((torch_outputs["label"] != onnx_outputs["label"]).sum()),
        int(torch_outputs["label"].size),
    )


def is_rounding(difference: OnnxDifference, torch_outputs: OutputArrays, onnx_outputs: OutputArrays) -> bool:
    """Whether the differences are rounding errors; labels may differ only between tied classes."""
    differs = torch_outputs["label"] != onnx_outputs["label"]
    probability = torch_outputs["probability"]
    onnx_label_probability = np.take_along_axis(probability, onnx_outputs["label"][:, None], 1)[:, 0]
    gap = (probability.max(1) - onnx_label_probability)[differs]
    is_tied = bool((gap <= 2 * PROBABILITY_TOLERANCE).all())
    is_close = max(difference.u_dis, difference.u_data) <= UNCERTAINTY_TOLERANCE
    return difference.probability <= PROBABILITY_TOLERANCE and is_close and is_tied


def _relative_difference(reference: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
    scale = np.maximum(np.abs(reference), MIN_COMPARED_UNCERTAINTY)
    difference: NDArray[Any] = np.abs(reference - value) / scale
    return difference


def _max_or_inf(values: NDArray[Any]) -> float:
    return float(np.nan_to_num(values, nan=np.inf).max())
