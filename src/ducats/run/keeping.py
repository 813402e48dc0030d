"""Checkpoints during a run and the weights at its end. Rank 0 writes them."""

import time
from dataclasses import dataclass
from pathlib import Path

from lightning_fabric import Fabric
from torch.optim import SGD

from ducats.errors import UserError
from ducats.models import EvidentialModel
from ducats.rundir import RunDir
from ducats.training.distributed import all_ranks_or_raise, on_rank_zero
from ducats.training.fit import adapt_optimiser_state
from ducats.training.sharding import gather_state, shard_optimiser_state, shard_state

PATIENCE = 30.0  # seconds for a shared file system to show all hosts the files that rank 0 wrote


@dataclass(frozen=True)
class Keeping:
    """Saves and restores a run's model and optimiser, gathered from all shards."""

    home: RunDir
    fabric: Fabric
    model: EvidentialModel
    optimiser: SGD
    fused: bool  # whether the optimiser uses its fused implementation

    def save(self, epoch: int, seconds: float) -> None:
        """Write a checkpoint; all processes must call this.

        Args:
            epoch: number of completed epochs.
            seconds: time that they took.
        """
        state = {
            "epoch": epoch,
            "seconds": seconds,
            "network": gather_state(self.model.network.state_dict(), self.fabric),
            "companions": self.model.auxiliaries.state_dict(),
            "optimiser": gather_state(self.optimiser.state_dict(), self.fabric),
            "precision": self.fabric.strategy.precision.state_dict(),  # the loss scale of float16
        }
        on_rank_zero(self.fabric, lambda: self.home.save_checkpoint(state))

    def restore(self) -> tuple[int, float]:
        """Load the latest checkpoint, if there is one; return its epoch and seconds."""
        state = self.home.checkpoint()
        # Records of later epochs belong to training that was lost; it is repeated and writes them again.
        on_rank_zero(self.fabric, lambda: self.home.forget_after(state["epoch"] if state else -1))
        if state is None:
            return 0, 0.0
        network = self.model.network
        network.load_state_dict(shard_state(state["network"], network.state_dict(), self.fabric))
        self.model.auxiliaries.load_state_dict(state.get("companions", {}))
        self.optimiser.load_state_dict(shard_optimiser_state(state["optimiser"], self.optimiser, self.fabric))
        adapt_optimiser_state(self.optimiser, fused=self.fused)
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        return state["epoch"], state["seconds"]

    def save_model(self) -> None:
        """Write the final weights, which marks the run as finished."""
        weights = gather_state(self.model.network.state_dict(), self.fabric)
        on_rank_zero(self.fabric, lambda: self.home.save_model(weights))


def check_shared(home: RunDir, fabric: Fabric, patience: float = PATIENCE) -> None:
    """Raise if hosts do not share the run folder: each would resume from a different state.

    Rank 0 must have claimed the folder. ``patience`` is in seconds.
    """
    if fabric.world_size == 1:
        return
    wanted = on_rank_zero(fabric, lambda: _looks(home.folder))

    def look() -> None:
        until = time.monotonic() + patience
        while _looks(home.folder) != wanted:
            if time.monotonic() > until:
                raise UserError(
                    f"process {fabric.global_rank + 1} of {fabric.world_size} does not see the files "
                    f"that rank 0 wrote to {home.folder}: use an --out that all hosts share"
                )
            time.sleep(0.1)

    all_ranks_or_raise(fabric, look)


def _looks(folder: Path) -> list[tuple[int, int] | None]:
    """Return size and modification time of the files that identify the state of a run."""
    names = ("config.yaml", "data.yaml", "checkpoint.pt", "model.safetensors")
    found = [path.stat() if (path := folder / name).exists() else None for name in names]
    return [None if one is None else (one.st_size, int(one.st_mtime)) for one in found]
