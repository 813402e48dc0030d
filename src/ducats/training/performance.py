"""Resolve performance options for a device."""

from dataclasses import replace

from lightning_fabric import Fabric

from ducats.dirichlet import can_compile
from ducats.settings import PerformanceOptions
from ducats.training.sharding import is_sharded
from ducats.training.step import can_capture_graphs
from ducats.utils.errors import UserError


def resolve_performance(
    options: PerformanceOptions, fabric: Fabric, *, trusted_code: bool = True, per_pixel: bool = False
) -> PerformanceOptions:
    """Return options without None.

    On a CPU all options default to off: they bring nothing, and results stay those of plain PyTorch.

    Args:
        trusted_code: whether objective and network are known to keep no Python state, which a captured
            step would freeze. Otherwise steps are captured only if ``cuda_graphs`` is True.
        per_pixel: whether losses are per pixel, where compilation pays off.
    """
    if options.cuda_graphs and not can_capture_graphs(fabric):
        raise UserError(
            "engine.cuda_graphs=true needs one CUDA device and a precision of 32-true, 64-true or "
            "bf16-mixed; omit it to use CUDA graphs where possible"
        )
    fsdp = is_sharded(fabric)
    for name, requested in (
        ("channels_last", options.channels_last),
        ("fused_optimiser", options.fused_optimiser),
    ):
        if fsdp and requested:
            raise UserError(f"engine.{name}=true cannot be combined with engine.strategy=fsdp; omit it")
    cuda = fabric.device.type == "cuda" and not fsdp
    fused = cuda if options.fused_optimiser is None else options.fused_optimiser
    graphs = (
        (can_capture_graphs(fabric) and fused and trusted_code)
        if options.cuda_graphs is None
        else options.cuda_graphs
    )
    if graphs and not fused:
        raise UserError(
            "engine.cuda_graphs=true needs engine.fused_optimiser=true; only a fused optimiser reads its "
            "learning rate from the device"
        )
    if options.compile and not can_compile(fabric.device):
        raise UserError("engine.compile=true needs a CUDA device and the package triton; omit it")
    return replace(
        options,
        compile=can_compile(fabric.device) and per_pixel if options.compile is None else options.compile,
        channels_last=cuda if options.channels_last is None else options.channels_last,
        fused_optimiser=fused,
        cuda_graphs=graphs,
    )
