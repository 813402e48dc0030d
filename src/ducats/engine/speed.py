"""Performance options. None of them changes results beyond rounding."""

from dataclasses import dataclass, replace

from lightning_fabric import Fabric

from ducats.dirichlet import can_compile
from ducats.engine.resident import Where
from ducats.engine.sharding import is_sharded
from ducats.engine.step import can_record
from ducats.errors import UserError


@dataclass(frozen=True)
class Speed:
    """Image placement and execution of training steps; None: decided by the device."""

    images_on: Where = "auto"
    channels_last: bool | None = None
    fused: bool | None = None
    graphs: bool | None = None
    compiled: bool | None = None

    def settle(self, fabric: Fabric, *, familiar: bool = True, pixels: bool = False) -> "Speed":
        """Return options without None.

        On a CPU all options default to off: they bring nothing, and results stay those of plain PyTorch.

        Args:
            familiar: whether objective and network are known to keep no Python state, which a captured step
                would freeze. Otherwise steps are captured only if ``graphs`` is True.
            pixels: whether losses are per pixel, where compilation pays off.
        """
        if self.graphs and not can_record(fabric):
            raise UserError(
                "engine.cuda_graphs=true needs one CUDA device and a precision of 32-true, 64-true or bf16-mixed; "
                "omit it to use CUDA graphs where possible"
            )
        apart = is_sharded(fabric)
        for name, asked in (("channels_last", self.channels_last), ("fused", self.fused)):
            if apart and asked:
                raise UserError(f"engine.{name}=true cannot be combined with engine.strategy=fsdp; omit it")
        cuda = fabric.device.type == "cuda" and not apart
        fused = cuda if self.fused is None else self.fused
        graphs = (can_record(fabric) and fused and familiar) if self.graphs is None else self.graphs
        if graphs and not fused:
            raise UserError(
                "engine.cuda_graphs=true needs engine.fused_optimiser=true; only a fused optimiser reads its learning rate "
                "from the device"
            )
        if self.compiled and not can_compile(fabric.device):
            raise UserError("engine.compile=true needs a CUDA device and the package triton; omit it")
        return replace(
            self,
            compiled=can_compile(fabric.device) and pixels if self.compiled is None else self.compiled,
            channels_last=cuda if self.channels_last is None else self.channels_last,
            fused=fused,
            graphs=graphs,
        )
