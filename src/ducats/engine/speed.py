"""What makes a GPU fast; each can be switched off, and none changes what is computed beyond rounding."""

from dataclasses import dataclass, replace

from lightning_fabric import Fabric

from ducats.dirichlet import can_fuse
from ducats.engine.resident import Where
from ducats.engine.sharding import is_sharded
from ducats.engine.step import can_record
from ducats.errors import UserError


@dataclass(frozen=True)
class Speed:
    """Where images live and how steps run; None is settled by what the device can do."""

    images_on: Where = "auto"
    channels_last: bool | None = None
    fused: bool | None = None
    graphs: bool | None = None
    compiled: bool | None = None

    def settle(self, fabric: Fabric, *, familiar: bool = True, pixels: bool = False) -> "Speed":
        """The same with nothing left open.

        On a CPU all are off by default: there is nothing to gain, and results stay those of plain PyTorch.

        Args:
            fabric: device, precision, processes.
            familiar: whether objective and network are known to keep no state in Python, which a recorded
                step would freeze; else steps are recorded only if that was asked for.
            pixels: whether losses are over pixels, so many that compiling them pays.
        """
        if self.graphs and not can_record(fabric):
            raise UserError(
                "engine.graphs=true needs one CUDA device and a precision of 32-true, 64-true or bf16-mixed: "
                "leave it out, and steps are recorded where they can be"
            )
        apart = is_sharded(fabric)
        for name, asked in (("channels_last", self.channels_last), ("fused", self.fused)):
            if apart and asked:
                raise UserError(f"engine.{name}=true does not go with engine.strategy=fsdp: leave it out")
        cuda = fabric.device.type == "cuda" and not apart
        fused = cuda if self.fused is None else self.fused
        graphs = (can_record(fabric) and fused and familiar) if self.graphs is None else self.graphs
        if graphs and not fused:
            raise UserError(
                "engine.graphs=true needs engine.fused=true: only a fused update reads its rate there"
            )
        if self.compiled and not can_fuse(fabric.device):
            raise UserError("engine.compiled=true needs a CUDA device and the package triton: leave it out")
        return replace(
            self,
            compiled=can_fuse(fabric.device) and pixels if self.compiled is None else self.compiled,
            channels_last=cuda if self.channels_last is None else self.channels_last,
            fused=fused,
            graphs=graphs,
        )
