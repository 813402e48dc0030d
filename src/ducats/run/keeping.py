"""What a run keeps of its model: checkpoints while it works, the weights at its end. One process writes."""

import time
from dataclasses import dataclass
from pathlib import Path

from lightning_fabric import Fabric
from torch.optim import SGD

from ducats.engine.fit import settle_state
from ducats.engine.processes import on_chief, together
from ducats.engine.sharding import gathered, spread, spread_optimiser
from ducats.errors import UserError
from ducats.models import Evidential
from ducats.rundir import RunDir

PATIENCE = 30.0  # seconds that a shared file system may take to show everyone what one process wrote


@dataclass(frozen=True)
class Keeping:
    """A run's model and optimiser, and where they are kept; whole, however they are spread."""

    home: RunDir
    fabric: Fabric
    model: Evidential
    optimiser: SGD
    fused: bool  # how the optimiser computes now

    def save(self, epoch: int, seconds: float) -> None:
        """Write a checkpoint; every process takes part.

        Args:
            epoch: epochs that are complete.
            seconds: that they took.
        """
        state = {
            "epoch": epoch,
            "seconds": seconds,
            "network": gathered(self.model.network.state_dict(), self.fabric),
            "companions": self.model.companions.state_dict(),
            "optimiser": gathered(self.optimiser.state_dict(), self.fabric),
            "precision": self.fabric.strategy.precision.state_dict(),  # the loss scale of float16
        }
        on_chief(self.fabric, lambda: self.home.save_checkpoint(state))

    def restore(self) -> tuple[int, float]:
        """Load the newest checkpoint, if there is one; return its epoch and seconds."""
        state = self.home.checkpoint()
        # Lines beyond the checkpoint belong to a training that is lost; it is repeated, and says them anew.
        on_chief(self.fabric, lambda: self.home.forget_after(state["epoch"] if state else -1))
        if state is None:
            return 0, 0.0
        network = self.model.network
        network.load_state_dict(spread(state["network"], network.state_dict(), self.fabric))
        self.model.companions.load_state_dict(state.get("companions", {}))
        self.optimiser.load_state_dict(spread_optimiser(state["optimiser"], self.optimiser, self.fabric))
        settle_state(self.optimiser, fused=self.fused)
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        return state["epoch"], state["seconds"]

    def save_model(self) -> None:
        """Write the last weights, which says that the run is done."""
        weights = gathered(self.model.network.state_dict(), self.fabric)
        on_chief(self.fabric, lambda: self.home.save_model(weights))


def check_shared(home: RunDir, fabric: Fabric, patience: float = PATIENCE) -> None:
    """Refuse hosts that do not see the same folder: each would go on from another place.

    Args:
        home: the run's folder, which the first process has claimed.
        fabric: processes.
        patience: seconds.
    """
    if fabric.world_size == 1:
        return
    wanted = on_chief(fabric, lambda: _looks(home.folder))

    def look() -> None:
        until = time.monotonic() + patience
        while _looks(home.folder) != wanted:
            if time.monotonic() > until:
                raise UserError(
                    f"process {fabric.global_rank + 1} of {fabric.world_size} does not see what the first "
                    f"one wrote to {home.folder}: give an --out that all hosts share"
                )
            time.sleep(0.1)

    together(fabric, look)


def _looks(folder: Path) -> list[tuple[int, int] | None]:
    """Size and age of what tells one state of a run from another."""
    names = ("config.yaml", "data.yaml", "checkpoint.pt", "model.safetensors")
    found = [path.stat() if (path := folder / name).exists() else None for name in names]
    return [None if one is None else (one.st_size, int(one.st_mtime)) for one in found]
