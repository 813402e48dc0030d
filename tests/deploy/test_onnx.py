"""ONNX Runtime agrees with PyTorch and with exact arithmetic."""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from mpmath import mp
from PIL import Image
from torch import Tensor, nn

from ducats.deploy import onnx
from ducats.deploy.inference_graph import ONNX_OUTPUTS, InferenceGraph
from ducats.deploy.onnx import (
    accept_any_size,
    check_onnx,
    compare_outputs,
    is_rounding,
    trace_onnx,
    write_onnx,
)
from ducats.models import EvidentialModel
from ducats.models.classifier import build_without_weights, timm_classifier
from ducats.models.small_fcn import small_fcn
from ducats.utils.errors import UserError

mp.dps = 40


def run_onnx(path: Path, images: Tensor) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip(ONNX_OUTPUTS, session.run(list(ONNX_OUTPUTS), {"images": images.numpy()}), strict=True))


def random_images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, images: Tensor) -> Tensor:
        return self.factor * images.flatten(1)


def test_uncertainties_match_exact_arithmetic_and_another_model_is_noticed(tmp_path: Path) -> None:
    """Alpha ranges from exp(-10) to 1e8, with one, some or all classes large; the batch size is fixed."""
    tops, gaps = np.linspace(-10, np.log(1e8), 12), (0, 0.5, 3, 8)
    z = torch.tensor(
        [[top, top - gap, top - gap / 2, top - 2 * gap] for top in tops for gap in gaps], dtype=torch.float32
    )
    images, path, model = z[:, :, None, None], tmp_path / "z.onnx", EvidentialModel(Scaled(1.0))
    graph = InferenceGraph(model, (1, 1), 4)
    write_onnx(trace_onnx(graph, images[0], opset=20, batch_size=len(z)), path, {})
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [len(z), 4, 1, 1]
    outputs = run_onnx(path, images)
    for i, row in enumerate(z.tolist()):
        alpha = [mp.exp(value) for value in row]
        total = mp.fsum(alpha)
        p = [a / total for a in alpha]
        data = mp.fsum(q * (mp.digamma(total + 1) - mp.digamma(a + 1)) for q, a in zip(p, alpha, strict=True))
        distribution = -mp.fsum(q * mp.log(q) for q in p) - data
        for name, exact in (("u_dis", distribution), ("u_data", data)):
            error = abs(mp.mpf(float(outputs[name][i])) - exact)
            assert error < 2e-6, (name, row)
            assert error < 5e-6 * exact, (name, row)
    few = images[:20]  # padded
    assert check_onnx(model, few, path, inputs=few, batch_size=len(z)).n_compared == len(z)
    with pytest.raises(UserError, match="disagrees with the model"):
        check_onnx(EvidentialModel(Scaled(1.05)), images, path, inputs=images, batch_size=len(z))


def networks() -> dict[str, tuple[nn.Module, str, Tensor]]:
    torch.manual_seed(0)
    tiny = build_without_weights(timm_classifier, classes=5, channels=3, backbone="test_resnet", bottleneck=8)
    fcn = small_fcn(classes=4, channels=3, width=8)
    return {
        "timm": (tiny, "exp_plus_one", random_images(3, 3, 32, 32)),
        "small_fcn": (fcn, "exp_at_most_10", random_images(3, 3, 12, 15)),
    }


@pytest.mark.parametrize("name", ["timm", "small_fcn"])
def test_onnx_runtime_agrees_with_pytorch_for_any_batch_size(name: str, tmp_path: Path) -> None:
    network, evidence, images = networks()[name]
    model = EvidentialModel(network, evidence).eval()
    shape = (12, 15) if name == "small_fcn" else ()
    graph = InferenceGraph(model, (images.shape[-2], images.shape[-1]), images.shape[1])
    write_onnx(trace_onnx(graph, images[0]), tmp_path / "m.onnx", {})
    difference = check_onnx(model, images, tmp_path / "m.onnx", inputs=images)
    assert difference.n_compared == 3 * math.prod(shape)
    assert difference.n_label_differences == 0
    assert max(difference[:3]) < 1e-4
    single, batch = run_onnx(tmp_path / "m.onnx", images[1:2]), run_onnx(tmp_path / "m.onnx", images)
    assert single["u_dis"].shape == (1, *shape)
    assert single["probability"].shape == (1, len(batch["probability"][0]), *shape)
    np.testing.assert_allclose(single["u_dis"][0], batch["u_dis"][1], rtol=1e-4)
    np.testing.assert_allclose(batch["probability"].sum(1), 1, rtol=1e-5)


def test_rounding_is_acceptable_and_larger_differences_are_not() -> None:
    torch_outputs = {
        "probability": np.array([[0.5, 0.5], [0.9, 0.1]]),
        "u_dis": np.array([0.1, 1e-9]),
        "u_data": np.array([0.2, 0.3]),
        "label": np.array([0, 0]),
    }
    tie = {**torch_outputs, "label": np.array([1, 0])}
    assert compare_outputs(torch_outputs, tie)[3:] == (1, 2)
    assert is_rounding(compare_outputs(torch_outputs, tie), torch_outputs, tie)
    other = {**torch_outputs, "label": np.array([0, 1])}
    assert not is_rounding(compare_outputs(torch_outputs, other), torch_outputs, other)
    tiny = {**torch_outputs, "u_dis": np.array([0.1, 2e-9])}  # below MIN_COMPARED_UNCERTAINTY
    assert is_rounding(compare_outputs(torch_outputs, tiny), torch_outputs, tiny)
    for name, value in (("probability", 1e-3), ("u_dis", 1e-3), ("u_data", np.nan)):
        wrong = {**torch_outputs, name: torch_outputs[name] + value}
        assert not is_rounding(compare_outputs(torch_outputs, wrong), torch_outputs, wrong)


@pytest.mark.parametrize("shape", [(1, 10, 12, 1), (2, 41, 37, 1), (1, 4, 5, 3)])
def test_resize_inside_the_graph_equals_pillow(shape: tuple[int, ...], tmp_path: Path) -> None:
    class Sizes(nn.Module):
        def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
            return tuple(pixels.float() for _ in ONNX_OUTPUTS)

    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    model = trace_onnx(Sizes(), torch.zeros(shape[-1], 10, 12, dtype=torch.uint8))
    accept_any_size(model)
    write_onnx(model, tmp_path / "m.onnx", {"range": [0, 4095]})
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {"range": "[0, 4095]"}
    resized = session.run(None, {"images": pixels})[0].transpose(0, 2, 3, 1)
    for image, found in zip(pixels, resized, strict=True):
        expected = Image.fromarray(image.squeeze()).resize((12, 10), Image.Resampling.BICUBIC)
        difference = np.abs(np.asarray(expected).reshape(found.shape) - found)
        assert difference.max() <= 1
        assert difference.mean() < 0.01


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name))
    with pytest.raises(UserError, match=r"needs onnxscript; run pip install 'ducats\[export\]'"):
        onnx.require_onnx()


def test_models_and_opsets_that_cannot_be_exported() -> None:
    class Odd(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1) * (2.0 if float(images.sum()) > 1 else 1.0)

    image = random_images(4, 1, 1)
    with pytest.raises(UserError, match="cannot be exported to ONNX"):
        trace_onnx(InferenceGraph(EvidentialModel(Odd()), (1, 1), 4), image)
    with pytest.raises(UserError, match="--opset must be at least 18"):
        trace_onnx(InferenceGraph(EvidentialModel(Scaled(1.0)), (1, 1), 4), image, opset=17)
