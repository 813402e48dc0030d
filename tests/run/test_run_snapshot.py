"""Snapshots, thumbnails and temperatures of runs, and that saving them does not change a run."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import Tensor, nn

import ducats
from conftest import Runner, make_runner, quick, quick_pixels
from ducats.acquisition.queries import QUERIES
from ducats.data.domain import UNLABELLED, VOID, Images
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.ledger import Request, load_ledger
from ducats.objectives import duc
from ducats.run import run, snapshot
from ducats.run.components import run_identity
from ducats.run.factory import build_run
from ducats.run.snapshot import save_thumbnails
from ducats.run.temperature import fit_temperature
from ducats.runfolder import checksums, snapshot_files
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils.errors import UserError
from present import present


def same_bits(one: RunFolder, two: RunFolder) -> None:
    """Assert equal labels, weights and momentum."""
    assert list(load_ledger(one).entries()) == list(load_ledger(two).entries())
    for name in ("model.safetensors", "requests/round-01.npz", "requests/round-02.npz"):
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes()
    optimisers = [
        torch.load(run_folder.path / "checkpoint.pt", weights_only=True)["optimiser"]
        for run_folder in (one, two)
    ]
    states = [[s["momentum_buffer"] for s in state["state"].values()] for state in optimisers]
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


RANDOM_VIEW = "views.scoring={crop: random, pad: 1}"


@pytest.mark.parametrize(
    ("make", "method", "settings"),
    [
        (quick, "random", (RANDOM_VIEW,)),
        (quick, "coreset", (RANDOM_VIEW,)),
        (quick_pixels, "random", ("task.unit=region",)),
        (
            quick_pixels,
            "duc",
            ("task.unit=image", "acquisition={budget: 2, rounds: null, after_epochs: [1, 2]}"),
        ),
    ],
)
def test_snapshots_do_not_change_a_run(
    tmp_path: Path, make: Any, method: str, settings: tuple[str, ...]
) -> None:
    without, with_ = (
        make_runner(tmp_path, make)(*settings, f"engine.snapshot_samples={n}", method=method, folder=str(n))
        for n in (0, 300)
    )
    same_bits(without, with_)
    assert not (without.path / "snapshots").exists()
    assert [one.round for one in snapshot_files.load_snapshots(with_.path)] == [1, 2, 0]
    assert not any("temperature_scaled" in stage for stage in without.stages())  # needs snapshots
    epochs = with_.read_records("epoch")
    assert [line["epoch"] for line in epochs] == [1, 2, 3, 4]
    assert 0 <= sum(line["seconds"] for line in epochs) <= with_.stages()[-1]["seconds"] + 0.01
    assert all(stage["peak_memory_bytes"] > 2**22 for stage in with_.stages())


def test_a_snapshot_uses_the_crops_of_the_query(run_quickly: Runner) -> None:
    """DUC's two steps on the snapshot's columns give the selection, also with a random view."""
    run_folder = run_quickly("views.scoring={crop: random, pad: 3}", "query.params.kappa=2")
    for found in snapshot_files.load_snapshots(run_folder.path)[:2]:
        open_ = np.flatnonzero(found.is_target & ~found.is_labelled)
        passed = open_[np.argsort(-found.log_u_dis[open_], kind="stable")[:20]]
        best = passed[np.argsort(-found.u_data[passed], kind="stable")[:10]]
        assert set(best) == set(np.flatnonzero(found.picked))


class RandomNetwork(nn.Module):
    """Uses random numbers also in evaluation mode, and has batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 4)

    def forward(self, images: Tensor) -> Tensor:
        torch.rand(1)
        logits: Tensor = self.head(self.norm(images).mean((2, 3)))
        return logits


def test_a_random_model_is_not_changed(tmp_path: Path) -> None:
    data, run_folders, draws = toy(), list[RunFolder](), list[float]()
    torch.manual_seed(3)
    components = ducats.Components(
        RandomNetwork(),
        data.source,
        data.pool,
        ducats.GroundTruthOracle(data.ground_truth),
        query=QUERIES["random"],
        objective=duc,
    )
    plan = ducats.RunPlan(epochs=2, query_epochs=(0, 1), budget=(3, 3), batch_size=8, steps_per_epoch=2)
    for n_samples in (0, 50):
        torch.manual_seed(5)
        plan = replace(plan, snapshot_samples=n_samples)
        run_folders.append(run(components, plan, tmp_path / str(n_samples), fabric=make_fabric("cpu")))
        draws.append(float(torch.rand(1)))
    assert draws[0] == draws[1]
    same_bits(*run_folders)
    assert len(snapshot_files.load_snapshots(run_folders[1].path)) == 3
    # The number of snapshot samples is not part of the identity.
    assert run_identity(components, plan) == run_identity(components, replace(plan, snapshot_samples=0))
    assert quick("engine.snapshot_samples=7").digest() == quick().digest()
    assert quick_pixels("engine.snapshot_samples=0").identity() == quick_pixels().identity()


def with_thumbnail(run_folder: RunFolder, pool: int) -> set[int]:
    """Return the images that have a thumbnail."""
    return {i for i in range(pool) if snapshot_files.find_thumbnail(run_folder.path, i) is not None}


@pytest.mark.parametrize("pixels", [False, True])
def test_snapshots_of_a_run(tmp_path: Path, pixels: bool) -> None:
    if pixels:
        make, n_samples, settings = quick_pixels, 200, ["task.unit=region"]
        data = streets(n_source=6, n_pool=5, n_test=3, height=16, width=32)
        n_valid = int((present(data.pool.void_masks)[:] == 0).sum())
        assert n_valid < 5 * 16 * 32
    else:
        make, n_samples, settings, data, n_valid = quick, 60, [], toy(), 80
    run_folder = make_runner(tmp_path, make)(*settings, f"engine.snapshot_samples={n_samples}")
    snapshots, pool = snapshot_files.load_snapshots(run_folder.path), run_folder.load_pool()
    assert [(one.round, one.epoch) for one in snapshots] == [(1, 1), (2, 2), (0, 4)]
    assert (pool.keys, pool.sizes is not None) == (list(data.pool.keys), pixels)
    source_labels = data.source.labels[:].flatten(1) if pixels else data.source.labels[:][:, None]
    ledger = load_ledger(run_folder)
    entries = [(e.round, (pool.keys.index(e.key), e.position), e.label) for e in ledger.entries()]
    for rounds, one in enumerate(snapshots):
        target, rows = one.is_target, [*zip(one.image.tolist(), one.position.tolist(), strict=True)]
        assert (one.pool, one.source) == (n_valid, int((source_labels >= 0).sum()))
        assert (one.sampled[target].sum(), one.sampled[~target].sum()) == (n_samples, -(-n_samples // 3))
        # The sample is the same in all snapshots.
        np.testing.assert_array_equal(
            one.image[target & one.sampled], snapshots[0].image[snapshots[0].is_target & snapshots[0].sampled]
        )
        known = {location: label for number, location, label in entries if number <= rounds}
        labels = [
            known.get(row, UNLABELLED) if is_target else int(source_labels[row])
            for row, is_target in zip(rows, target, strict=True)
        ]
        assert one.label.tolist() == labels
        np.testing.assert_array_equal(one.is_labelled, target & (one.label != UNLABELLED))
        picks = [location for number, location, _ in entries if number == one.round]
        assert sorted(rows[i] for i in np.flatnonzero(one.picked)) == sorted(picks)
        assert one.z.shape == (len(picks), len(data.classes))
    labelled_images = {image for _, (image, _), _ in entries}
    assert with_thumbnail(run_folder, len(data.pool)) == labelled_images


def test_whole_labelled_images_have_thumbnails(run_pixels: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_POOL_IMAGES", 2)
    monkeypatch.setattr(snapshot, "MAX_SEGMENTATION_THUMBNAILS", 1)
    run_folder = run_pixels("task.unit=image", "acquisition={budget: 4, rounds: null, after_epochs: [1, 2]}")
    ledger = load_ledger(run_folder)
    labelled = [set(ledger.labels_per_image(n).nonzero().flatten().tolist()) for n in (1, 2)]
    shown = with_thumbnail(run_folder, 5)
    assert len(shown) == 2  # one per round
    assert len(shown & labelled[0]) == 1
    assert shown <= labelled[1]
    for one in snapshot_files.load_snapshots(run_folder.path):
        assert len(set(one.image[one.is_target].tolist())) <= 2


def reference(z: np.ndarray, labels: np.ndarray) -> float:
    def nll(log_t: float) -> float:
        scaled = z / math.exp(log_t)
        return float((logsumexp(scaled, 1) - scaled[np.arange(len(z)), labels]).mean())

    bounds = (math.log(0.05), math.log(20))
    return math.exp(minimize_scalar(nll, bounds=bounds, method="bounded", options={"xatol": 1e-10}).x)


@pytest.mark.parametrize("pixels", [False, True])
def test_stages_record_temperature_scaled_metrics(
    run_quickly: Runner, run_pixels: Runner, pixels: bool
) -> None:
    run_folder = (run_pixels if pixels else run_quickly)(method="random")  # selects several classes per round
    stages, shots = run_folder.stages(), snapshot_files.load_snapshots(run_folder.path)
    assert ["temperature_scaled" in stage for stage in stages] == [False, True, True]
    label_of = {(e.round, e.key, e.position): e.label for e in load_ledger(run_folder).entries()}
    keys = run_folder.load_pool().keys
    z, labels = np.zeros((0, shots[0].z.shape[1])), list[int]()
    for shot, stage in zip(shots, stages[1:], strict=False):
        z = np.concatenate([z, shot.z.astype(np.float64)])
        rows = zip(shot.image[shot.z_rows].tolist(), shot.position[shot.z_rows].tolist(), strict=True)
        labels += [label_of[shot.round, keys[image], position] for image, position in rows]
        scaled = stage["temperature_scaled"]
        assert scaled["labels"] == len(labels)
        assert scaled["temperature"] == pytest.approx(reference(z, np.array(labels)), rel=1e-4)
        assert sum(scaled["reliability"]["count"]) == sum(stage["reliability"]["count"])
        assert scaled.keys() == {"temperature", "labels", "ece", "nll", "brier", "reliability"}
        warmer, before = scaled["temperature"] > 1, np.nanmean(_confidence(stage))
        assert (np.nanmean(_confidence(scaled)) < before) == warmer


def _confidence(scaled: dict[str, Any]) -> list[float]:
    """Return the confidence of each counted sample."""
    bins = scaled["reliability"]
    return [c for n, c in zip(bins["count"], bins["confidence"], strict=True) if n for _ in range(n)]


def test_void_and_unanswered_samples_are_not_used_for_the_temperature(run_quickly: Runner) -> None:
    run_folder = run_quickly(method="random")
    assert fit_temperature(run_folder, 0) is None
    assert present(fit_temperature(run_folder, 2)).labels == 20
    second = present(run_folder.load_round_labels(2))
    checksums.delete(run_folder.path / "labels" / "round-02.npz")
    assert present(fit_temperature(run_folder, 2)).labels == 10
    request = Request(2, torch.from_numpy(second.image[:4].copy()), torch.zeros(4, dtype=torch.long))
    load_ledger(run_folder).append(request, torch.tensor([VOID, *second.label[1:4].tolist()]))
    assert present(fit_temperature(run_folder, 2)).labels == 13
    checksums.delete(snapshot_files.snapshot_path(run_folder.path, 1))
    assert fit_temperature(run_folder, 2) is None  # three labels are too few


def test_a_lost_snapshot_is_not_recreated_from_a_later_model(run_quickly: Runner) -> None:
    """After a round is labelled, the model before it no longer exists."""
    run_folder = run_quickly()
    snapshot_files.snapshot_path(run_folder.path, 1).unlink()
    (run_folder.path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"round-01\.npz is missing; .* the training is repeated"):
        run_quickly()


def make_images(channels: int, height: int, width: int) -> Images:
    return Images(("a", "b"), torch.randint(256, (2, channels, height, width), dtype=torch.uint8))


@pytest.mark.parametrize(
    ("shape", "suffix", "size"), [((1, 20, 30), ".png", (30, 20)), ((3, 400, 200), ".jpg", (80, 160))]
)
def test_thumbnails(tmp_path: Path, shape: tuple[int, int, int], suffix: str, size: tuple[int, int]) -> None:
    run_folder = RunFolder(tmp_path)
    save_thumbnails(run_folder, make_images(*shape), [1])
    path = present(snapshot_files.find_thumbnail(tmp_path, 1))
    with Image.open(path) as thumbnail:
        assert (path.suffix, thumbnail.size) == (suffix, size)
        assert thumbnail.format == {".png": "PNG", ".jpg": "JPEG"}[suffix]
    before = path.read_bytes()
    assert len(before) < 20_000
    save_thumbnails(run_folder, make_images(*shape), [1])
    assert path.read_bytes() == before  # an existing one is not replaced


def test_images_that_cannot_be_shown_or_are_missing_have_no_thumbnail(tmp_path: Path) -> None:
    gone = replace(make_images(3, 20, 30), files=(tmp_path / "gone.png",) * 2)
    for images in (make_images(2, 20, 30), gone):
        save_thumbnails(RunFolder(tmp_path), images, [0])
    assert snapshot_files.find_thumbnail(tmp_path, 0) is None


@pytest.mark.gpu
@pytest.mark.parametrize("make", [quick, quick_pixels])
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch.compile
def test_snapshots_on_a_gpu(tmp_path: Path, make: Any) -> None:
    config = make("engine.device=cuda", "engine.precision=32-true")
    components, plan = build_run(config, RunFolder(tmp_path / "run"))
    fabric = make_fabric("cuda")
    run_folder = run(components, plan, tmp_path / "run", fabric=fabric, identity=config.identity())
    assert [one.round for one in snapshot_files.load_snapshots(run_folder.path)] == [1, 2, 0]
    assert list((run_folder.path / "snapshots" / "thumbnails").iterdir())
    assert all(stage["peak_memory_bytes"] > 0 for stage in run_folder.stages())
