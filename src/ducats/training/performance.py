"""Performance options. None of them changes results beyond rounding."""

from dataclasses import dataclass, replace

from lightning_fabric import Fabric

from ducats.dirichlet import can_compile
from ducats.training.placement import Placement
from ducats.training.sharding import is_sharded
from ducats.training.step import can_capture_graphs
from ducats.utils.errors import UserError


@dataclass(frozen=True)
class PerformanceOptions:
    """Image placement and execution of training steps; None: decided by the device."""

    image_placement: Placement = "auto"
    channels_last: bool | None = None
    fused_optimiser: bool | None = None
    cuda_graphs: bool | None = None
    compile: bool | None = None

    def resolve(
        self, fabric: Fabric, *, trusted_code: bool = True, per_pixel: bool = False
    ) -> "PerformanceOptions":
        """Return options without None.

        On a CPU all options default to off: they bring nothing, and results stay those of plain PyTorch.

        Args:
            trusted_code: whether objective and network are known to keep no Python state, which a captured
                step would freeze. Otherwise steps are captured only if ``cuda_graphs`` is True.
            per_pixel: whether losses are per pixel, where compilation pays off.
        """
        if self.cuda_graphs and not can_capture_graphs(fabric):
            raise UserError(
                "engine.cuda_graphs=true needs one CUDA device and a precision of 32-true, 64-true or "
                "bf16-mixed; omit it to use CUDA graphs where possible"
            )
        fsdp = is_sharded(fabric)
        for name, requested in (
            ("channels_last", self.channels_last),
            ("fused_optimiser", self.fused_optimiser),
        ):
            if fsdp and requested:
                raise UserError(f"engine.{name}=true cannot be combined with engine.strategy=fsdp; omit it")
        cuda = fabric.device.type == "cuda" and not fsdp
        fused = cuda if self.fused_optimiser is None else self.fused_optimiser
        graphs = (
            (can_capture_graphs(fabric) and fused and trusted_code)
            if self.cuda_graphs is None
            else self.cuda_graphs
        )
        if graphs and not fused:
            raise UserError(
                "engine.cuda_graphs=true needs engine.fused_optimiser=true; only a fused optimiser reads its "
                "learning rate from the device"
            )
        if self.compile and not can_compile(fabric.device):
            raise UserError("engine.compile=true needs a CUDA device and the package triton; omit it")
        return replace(
            self,
            compile=can_compile(fabric.device) and per_pixel if self.compile is None else self.compile,
            channels_last=cuda if self.channels_last is None else self.channels_last,
            fused_optimiser=fused,
            cuda_graphs=graphs,
        )
