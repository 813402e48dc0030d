"""DUC's pixel losses computed in pieces, compared with the plain float32 formula on whole maps.

    python benchmarks/pixel_losses.py [--device cuda] [--height 720] [--width 1280] [--classes 19]
        [--images 2] [--stride 8] [--compile] [--graph] [--piece 8388608] [--out FILE]

Runs forward and backward with respect to logits on a coarse grid. `source` has labels for all pixels;
`target` has labels for 5 % of the pixels and minimises both uncertainties of the others. Prints the median
time in milliseconds, the additional peak memory (GPU only), and the relative differences of loss and gradient
from the plain formula in float32 and in float64.
"""

import argparse
import importlib
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats import dirichlet
from ducats.data.domain import UNLABELLED
from ducats.dirichlet import formulas
from ducats.models.output import Output
from ducats.objectives import Batch, LabelledImages, duc

LossFn = Callable[[Tensor], Tensor]
EVIDENCE = dirichlet.EVIDENCE_FUNCTIONS["exp_at_most_10"]


def pieced_loss(labels: Tensor, target: bool) -> LossFn:
    """Return the loss as computed in training."""
    size = (labels.shape[1], labels.shape[2])

    def losses(z: Tensor) -> Tensor:
        data = LabelledImages(z, labels)
        batch = Batch(data, None, None, data if target else None)
        found = duc(lambda images: Output(images, None, size, EVIDENCE), batch, source=0.0 if target else 1.0)
        return torch.stack(list(found.values())).sum()

    return losses


def plain_loss(labels: Tensor, target: bool) -> LossFn:
    """Return the same loss on whole maps: interpolate, clamp, formula, average over valid pixels."""
    size = (labels.shape[1], labels.shape[2])

    def mean(values: Tensor, counted: Tensor) -> Tensor:
        return (values * counted).sum() / counted.sum().clamp(min=1)

    def losses(z: Tensor) -> Tensor:
        dense = EVIDENCE(F.interpolate(z, size, mode="bilinear", align_corners=True))
        label, is_labelled = labels.long(), labels >= 0
        loss = mean(dirichlet.negative_log_likelihood(dense, label), is_labelled)
        loss = loss + mean(dirichlet.misleading_evidence(dense, label) / z.shape[1], is_labelled)
        if target:
            found = dirichlet.uncertainties(dense)
            is_unlabelled = labels == UNLABELLED
            loss = loss + mean(found.distribution, is_unlabelled) + 0.05 * mean(found.data, is_unlabelled)
        return loss

    return losses


def loss_and_gradient(losses: LossFn, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and gradient."""
    leaf = z.detach().requires_grad_()
    loss = losses(leaf)
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


def record_graph(losses: LossFn, z: Tensor) -> Callable[[], object]:
    """Record forward and backward as a CUDA graph; this fails if anything synchronises with the device."""
    loss_and_gradient(losses, z)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss_and_gradient(losses, z)
    return graph.replay


def measure(act: Callable[[], object], device: str, repeats: int) -> dict[str, float | None]:
    """Return the median time in milliseconds and the additional peak memory in MiB."""
    cuda = device == "cuda"

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    act()
    wait()
    before = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        wait()
        times.append(1e3 * (time.perf_counter() - start))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else None
    return {"ms": statistics.median(times), "peak_mib": peak}


def relative_error(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Return the relative differences of loss and gradient."""
    loss, gradient = (
        float((a.double() - b.double()).norm() / b.double().norm())
        for a, b in zip(found, expected, strict=True)
    )
    return {"loss": loss, "gradient": gradient}


def compare(options: argparse.Namespace, target: bool) -> dict[str, Any]:
    """Return all figures of one stream."""
    height, width, stride = options.height, options.width, options.stride
    generator = torch.Generator().manual_seed(int(target))
    coarse = (options.images, options.classes, -(-height // stride), -(-width // stride))
    z = (4 * torch.randn(coarse, generator=generator)).to(options.device)
    shape = (options.images, height, width)
    labels = torch.randint(0, options.classes, shape, generator=generator).to(torch.int8)
    if target:
        labels[torch.rand(shape, generator=generator) > 0.05] = UNLABELLED
    labels = labels.to(options.device)
    chunked, plain = pieced_loss(labels, target), plain_loss(labels, target)
    result: dict[str, Any] = {
        "walked": measure(lambda: loss_and_gradient(chunked, z), options.device, options.repeats)
    }
    if options.graph:
        result["recorded"] = measure(record_graph(chunked, z), options.device, options.repeats)
    found, again = loss_and_gradient(chunked, z), loss_and_gradient(chunked, z)
    result["repeats_to_the_bit"] = all(a.equal(b) for a, b in zip(found, again, strict=True))
    fused, formulas.COMPILE_FORMULAS = formulas.COMPILE_FORMULAS, False
    try:
        result["plain"] = measure(lambda: loss_and_gradient(plain, z), options.device, options.repeats)
        reference = loss_and_gradient(plain, z)
        result["float32"] = relative_error(found, reference)
        # Both float32 results have rounding errors; compare each with float64.
        exact = loss_and_gradient(plain, z.double())
        result["float32_from_float64"] = relative_error(found, exact)
        result["plain_from_float64"] = relative_error(reference, exact)
        formulas.COMPILE_FORMULAS = fused
        half = loss_and_gradient(chunked, z.bfloat16())
        formulas.COMPILE_FORMULAS = False
        same_logits = loss_and_gradient(plain, z.bfloat16().float())
        result["bfloat16"] = relative_error(half, same_logits)
        # This includes the rounding of the logits.
        result["bfloat16_from_float32_logits"] = relative_error(half, reference)
    except torch.OutOfMemoryError:
        result.setdefault("plain", None)  # does not fit in memory
    finally:
        formulas.COMPILE_FORMULAS = fused
    return result


def main() -> None:
    """Measure, print, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    for name, value in (("height", 720), ("width", 1280), ("classes", 19), ("images", 2), ("stride", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--piece", type=int, help="elements per piece, instead of the default")
    parser.add_argument("--compile", action="store_true", help="compile the formulas into a few kernels")
    parser.add_argument("--graph", action="store_true", help="also measure a recorded CUDA graph")
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    options = parser.parse_args()
    if options.graph and options.device != "cuda":
        parser.error("--graph needs --device cuda")
    formulas.COMPILE_FORMULAS = options.compile
    if options.piece:
        module = importlib.import_module("ducats.objectives.reduction")
        setattr(
            module, "CPU_CHUNK_ELEMENTS" if options.device == "cpu" else "GPU_CHUNK_ELEMENTS", options.piece
        )
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"{name}, torch {torch.__version__}, {options.images} x {options.height} x {options.width}")
    results = {stream: compare(options, stream == "target") for stream in ("source", "target")}
    for stream, result in results.items():
        for way in ("walked", "recorded", "plain"):
            if result.get(way):
                peak = result[way]["peak_mib"]
                memory = "" if peak is None else f"{peak:10.0f} MiB"
                print(f"{stream:8s}{way:10s}{result[way]['ms']:10.2f} ms{memory}")
        for precision in ("float32", "float32_from_float64", "plain_from_float64", "bfloat16"):
            if precision in result:
                loss, gradient = result[precision]["loss"], result[precision]["gradient"]
                print(f"{stream:8s}{precision}: loss off by {loss:.1e}, gradient by {gradient:.1e}")
        print(f"{stream:8s}repeats to the bit: {result['repeats_to_the_bit']}")
    if options.out:
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        about = {"machine": name, "torch": torch.__version__, "settings": settings}
        options.out.write_text(json.dumps(about | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
