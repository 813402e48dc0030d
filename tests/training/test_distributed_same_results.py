"""Results do not depend on the number of processes, for networks without batch statistics."""

import os
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from conftest import QUICK
from ducats.ledger import load_ledger
from ducats.models import EvidentialModel
from ducats.run.checkpoint import load_checkpoint, load_model
from ducats.runfolder import records
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import PerformanceOptions
from ducats.training.distributed import make_fabric
from ducats.training.performance import resolve_performance
from ducats.training.sharding import gather_state, is_sharded, unsharded
from ducats.utils.errors import UserError
from plain_networks import plain
from ranks import RankResults, Setup, command, in_ranks, kill_in_epoch, run_in_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# 80 images in batches of 32 are three batches, shared unevenly by two processes. 12 labels are shared evenly.
SETTINGS = (
    *QUICK,
    "model={name: 'plain_networks:plain', params: {}}",
    "train.epochs=3",
    "acquisition={after_epochs: [1, 2], budget: 24}",
    "views.source={crop: random, pad: 1, flip: 0.5}",
)
FSDP = "engine.strategy=fsdp"


def run_ranks(folder: Path, processes: int, *settings: str, before: Setup = lambda _: None) -> RankResults:
    run = command((*SETTINGS, *settings), folder, "--devices", str(processes))
    return run_in_ranks(run, folder.parent / "output", processes, setup=before)


def finished_run(folder: Path, processes: int, *settings: str) -> RunFolder:
    ranks = run_ranks(folder, processes, *settings)
    assert ranks.codes == [0] * processes, ranks.outputs
    return RunFolder(folder)


def assert_same_run(one: RunFolder, other: RunFolder, tolerance: float) -> None:
    """Assert the same labels in the same order, and the same weights and losses up to rounding."""
    assert list(load_ledger(one).entries()) == list(load_ledger(other).entries())
    assert len(load_ledger(one)) == 24
    for number in (1, 2):
        files = [
            (run_folder.path / "requests" / f"round-{number:02d}.npz").read_bytes()
            for run_folder in (one, other)
        ]
        assert files[0] == files[1]
    theirs = load_model(other)
    for name, weight in load_model(one).items():
        torch.testing.assert_close(weight, theirs[name], rtol=tolerance, atol=tolerance)
    losses = [
        [r["losses"] for r in records.read_records(h.metrics_path) if r["kind"] == "epoch"]
        for h in (one, other)
    ]
    for mine, others in zip(*losses, strict=True):
        assert mine == pytest.approx(others, rel=max(tolerance, 1e-6))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run on two processes with DDP."""
    return finished_run(tmp_path_factory.mktemp("ddp") / "run", 2)


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ((), 1e-5),
        # With random numbers, features and pseudo-labels.
        (
            (
                "query={name: badge}",
                "objective={name: duc, params: {propagation_rate: 0.2}}",
                "engine.precision=64-true",
            ),
            1e-12,
        ),
    ],
)
def test_one_and_two_processes_select_the_same_samples(
    tmp_path: Path, undisturbed: RunFolder, settings: tuple[str, ...], tolerance: float
) -> None:
    two = finished_run(tmp_path / "two", 2, *settings) if settings else undisturbed
    assert_same_run(finished_run(tmp_path / "one", 1, *settings), two, tolerance)


# ---- sharded weights


def test_each_rank_holds_its_shards_and_all_weights_within_the_context(tmp_path: Path) -> None:
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def network() -> EvidentialModel:
        torch.manual_seed(0)
        return EvidentialModel(plain(classes=4, channels=3))

    count = sum(parameter.numel() for parameter in network().parameters())
    expected = network()(images)

    def check_rank(rank: int) -> None:
        fabric = make_fabric("cpu", 2, strategy="fsdp")
        fabric.launch()
        bare = network()
        if rank == 1:
            torch.nn.init.zeros_(bare.network.head.weight)  # type: ignore[union-attr,arg-type]
        model = fabric.setup_module(bare)
        assert all(isinstance(parameter, DTensor) for parameter in bare.parameters())
        own_count = sum(parameter.to_local().numel() for parameter in bare.parameters())  # type: ignore[attr-defined]
        assert count / 3 < own_count < 2 * count / 3
        fsdp_names = [name for name, module in bare.network.named_modules() if isinstance(module, FSDPModule)]
        assert fsdp_names == ["", "layers.0", "layers.0.0", "layers.1", "layers.1.0", "layers.3"]
        with unsharded(bare):
            assert not any(isinstance(parameter, DTensor) for parameter in bare.parameters())
            for _ in range(2 - rank):  # without communication
                alone = model(images)
        torch.testing.assert_close(alone.z, expected.z)  # weights of rank 0
        torch.testing.assert_close(alone.features, expected.features)
        state = gather_state(bare.network.state_dict(), fabric)
        for name, weight in network().network.state_dict().items():
            assert torch.equal(state[name], weight)
        assert all(isinstance(parameter, DTensor) for parameter in bare.parameters())

    done = in_ranks(check_rank, tmp_path / "output")
    assert done.codes == [0, 0], done.outputs


def test_fsdp_trains_like_ddp(tmp_path: Path, undisturbed: RunFolder) -> None:
    run_folder = finished_run(tmp_path / "fsdp", 2, FSDP)
    assert_same_run(run_folder, undisturbed, 1e-5)
    checkpoint, other = (load_checkpoint(one) for one in (run_folder, undisturbed))
    assert checkpoint is not None
    assert other is not None
    assert type(checkpoint["network"]) is type(other["network"])
    for own, theirs in zip(
        checkpoint["optimiser"]["state"].values(), other["optimiser"]["state"].values(), strict=True
    ):
        torch.testing.assert_close(own["momentum_buffer"], theirs["momentum_buffer"], rtol=1e-4, atol=1e-5)


def test_fsdp_with_batch_statistics_clipping_and_a_query_that_reads_the_last_layer(tmp_path: Path) -> None:
    network = "model={name: small_cnn, params: {width: 4, features: 16}}"
    settings = (network, "query={name: sdm}", "train.clip_grad_norm=0.5")
    one, two = (
        finished_run(tmp_path / "ddp", 2, *settings),
        finished_run(tmp_path / "fsdp", 2, FSDP, *settings),
    )
    assert_same_run(one, two, 1e-4)


@pytest.mark.parametrize("strategies", [("fsdp", "ddp"), ("ddp", "fsdp")])
def test_a_run_resumes_with_another_strategy(
    tmp_path: Path, undisturbed: RunFolder, strategies: tuple[str, str]
) -> None:
    began, then = (f"engine.strategy={name}" for name in strategies)
    assert run_ranks(tmp_path / "run", 2, began, before=kill_in_epoch(0)).codes[0] < 0
    assert_same_run(finished_run(tmp_path / "run", 2, then), undisturbed, 1e-5)


def test_adamw_resumes_with_fsdp(tmp_path: Path) -> None:
    adamw = ("train.optimiser=adamw", "train.lr=0.005", "train.epochs=2", "acquisition={after_epochs: [1]}")
    assert run_ranks(tmp_path / "run", 2, *adamw, before=kill_in_epoch(0)).codes[0] < 0
    resumed = finished_run(tmp_path / "run", 2, FSDP, *adamw)
    other = load_model(finished_run(tmp_path / "one", 1, *adamw))
    for name, weight in load_model(resumed).items():
        torch.testing.assert_close(weight, other[name], rtol=1e-4, atol=1e-4)


def test_fsdp_rejects_auxiliary_modules_with_weights(tmp_path: Path) -> None:
    ended = run_ranks(tmp_path / "run", 2, FSDP, "query={name: aada}", "objective={name: adversarial}")
    assert ended.codes == [2, 2]
    assert "".join(ended.outputs).count("engine.strategy=fsdp does not support auxiliary modules") == 1


def test_unsupported_fsdp_settings_raise() -> None:
    with pytest.raises(UserError, match=r"cannot be combined with engine\.precision=64-true"):
        make_fabric("cpu", 2, "64-true", strategy="fsdp")
    with pytest.raises(UserError, match="unknown strategy 'zero'"):
        make_fabric("cpu", 2, strategy="zero")
    fabric = make_fabric("cpu", strategy="fsdp")
    assert is_sharded(fabric)
    assert not is_sharded(make_fabric("cpu"))
    for name in ("fused_optimiser", "channels_last"):
        with pytest.raises(
            UserError, match=f"engine.{name}=true cannot be combined with engine.strategy=fsdp"
        ):
            resolve_performance(PerformanceOptions(**{name: True}), fabric)  # type: ignore[arg-type]
