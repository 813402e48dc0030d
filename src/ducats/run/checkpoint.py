"""Checkpoints during a run and the weights at its end. Rank 0 writes them."""

import time
from dataclasses import dataclass
from pathlib import Path

from lightning_fabric import Fabric
from torch.optim import SGD

from ducats.models import EvidentialModel
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import all_ranks_or_raise, on_rank_zero
from ducats.training.fit import adapt_optimiser_state
from ducats.training.sharding import gather_state, shard_optimiser_state, shard_state
from ducats.utils.errors import UserError

_FILE_SYNC_TIMEOUT_SECONDS = 30.0  # for a shared file system to show all hosts the files of rank 0


@dataclass(frozen=True)
class Checkpointer:
    """Saves and restores a run's model and optimiser, gathered from all shards."""

    run_folder: RunFolder
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
            "auxiliaries": self.model.auxiliaries.state_dict(),
            "optimiser": gather_state(self.optimiser.state_dict(), self.fabric),
            "precision": self.fabric.strategy.precision.state_dict(),  # the loss scale of float16
        }
        on_rank_zero(self.fabric, lambda: self.run_folder.save_checkpoint(state))

    def restore(self) -> tuple[int, float]:
        """Load the latest checkpoint, if there is one; return its epoch and seconds."""
        state = self.run_folder.load_checkpoint()
        # Records of later epochs belong to training that was lost; it is repeated and writes them again.
        on_rank_zero(self.fabric, lambda: self.run_folder.discard_after(state["epoch"] if state else -1))
        if state is None:
            return 0, 0.0
        network = self.model.network
        network.load_state_dict(shard_state(state["network"], network.state_dict(), self.fabric))
        self.model.auxiliaries.load_state_dict(state.get("auxiliaries", {}))
        self.optimiser.load_state_dict(shard_optimiser_state(state["optimiser"], self.optimiser, self.fabric))
        adapt_optimiser_state(self.optimiser, fused=self.fused)
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        return state["epoch"], state["seconds"]

    def save_model(self) -> None:
        """Write the final weights, which marks the run as finished."""
        weights = gather_state(self.model.network.state_dict(), self.fabric)
        on_rank_zero(self.fabric, lambda: self.run_folder.save_model(weights))


def check_shared_folder(
    run_folder: RunFolder, fabric: Fabric, timeout_seconds: float = _FILE_SYNC_TIMEOUT_SECONDS
) -> None:
    """Raise if hosts do not share the run folder: each would resume from a different state.

    Rank 0 must have claimed the folder.
    """
    if fabric.world_size == 1:
        return
    expected = on_rank_zero(fabric, lambda: _file_states(run_folder.path))

    def wait_until_visible() -> None:
        deadline = time.monotonic() + timeout_seconds
        while _file_states(run_folder.path) != expected:
            if time.monotonic() > deadline:
                raise UserError(
                    f"process {fabric.global_rank + 1} of {fabric.world_size} does not see the files "
                    f"that rank 0 wrote to {run_folder.path}: use an --out that all hosts share"
                )
            time.sleep(0.1)

    all_ranks_or_raise(fabric, wait_until_visible)


def _file_states(folder: Path) -> list[tuple[int, int] | None]:
    """Return size and modification time of the files that identify the state of a run."""
    names = ("config.yaml", "data.yaml", "checkpoint.pt", "model.safetensors")
    found = [path.stat() if (path := folder / name).exists() else None for name in names]
    return [None if stat is None else (stat.st_size, int(stat.st_mtime)) for stat in found]
