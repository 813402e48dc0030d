"""Export a model as an ONNX graph and check it against PyTorch."""

import json
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ducats import dirichlet
from ducats.deploy.inference_graph import ONNX_OUTPUTS, AccurateLog1p
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


def trace_onnx(
    graph: nn.Module, example: Tensor, *, opset: int = DEFAULT_OPSET, batch_size: int | None = None
) -> Any:
    """Return a graph on the CPU and its weights as an ONNX ``ModelProto``.

    ``example`` is one image of the input; a ``batch_size`` of None means any.
    """
    require_onnx()
    if opset < MIN_OPSET:
        raise UserError(f"--opset must be at least {MIN_OPSET}, not {opset}")
    examples = torch.zeros_like(example).expand(batch_size or 2, *example.shape).contiguous()
    dynamic_shapes = None if batch_size else ({0: torch.export.Dim("images")},)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings are for the authors of the exporter
        try:
            # AccurateLog1p needs strict=False, which runs the Python code.
            with AccurateLog1p():
                program = torch.export.export(graph, (examples,), dynamic_shapes=dynamic_shapes, strict=False)
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
    return model


def accept_any_size(model: Any) -> None:
    """Let a model of stored images take images of any size, uint8 ``(N, height, width, channels)``.

    Its first node then resizes them as Pillow does: some values differ by 1 of 255.
    """
    from onnx import TensorProto, helper

    graph, stored = model.graph, model.graph.input[0]
    count, channels, height, width = (
        dim.dim_value or dim.dim_param for dim in stored.type.tensor_type.shape.dim
    )
    for node in graph.node:
        node.input[:] = ["stored_images" if name == stored.name else name for name in node.input]
    # A fixed number of axes: the number of images is not needed.
    graph.initializer.append(helper.make_tensor("stored_size", TensorProto.INT64, [2], [height, width]))
    resize: dict[str, Any] = {
        "mode": "cubic",
        "cubic_coeff_a": -0.5,
        "antialias": 1,
        "exclude_outside": 1,
        "axes": [2, 3],
    }
    nodes = [
        helper.make_node("Transpose", [stored.name], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Resize", ["planes", "", "", "stored_size"], ["stored_images"], **resize),
        *graph.node,
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    shape = [count, "height", "width", channels]
    stored.CopyFrom(helper.make_tensor_value_info(stored.name, TensorProto.UINT8, shape))


def write_onnx(model: Any, path: Path, metadata: Mapping[str, object]) -> None:
    """Write a ``ModelProto`` to a file, with each value of the metadata as JSON."""
    from onnx import helper

    helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    write_atomically(path, lambda file: file.write(model.SerializeToString()))


def check_onnx(
    model: EvidentialModel,
    images: Tensor,
    path: Path,
    *,
    inputs: Tensor,
    batch_size: int | None = None,
    flip: bool = False,
) -> OnnxDifference:
    """Compare ONNX Runtime with PyTorch on the CPU; raise if they differ by more than rounding.

    Args:
        images: input of the PyTorch model, float32 in [0, 1].
        inputs: the same images as input of the exported graph.
        batch_size, flip: those of the exported graph.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    torch_batches, onnx_batches = [], []
    for batch in torch.arange(len(images)).split(batch_size or len(images)):
        if batch_size and len(batch) < batch_size:  # pad the last batch
            batch = torch.cat([batch, batch[:1].expand(batch_size - len(batch))])
        torch_batches.append([tensor.numpy() for tensor in _torch_outputs(model, images[batch], flip)])
        onnx_batches.append(session.run(list(ONNX_OUTPUTS), {"images": inputs[batch].numpy()}))
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
