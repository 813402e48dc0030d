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
from conftest import Runner, quick, quick_pixels
from ducats.data.domain import UNLABELLED, VOID, Images
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.ledger import Request, load_ledger
from ducats.run import run, snapshot
from ducats.run.components import run_identity
from ducats.run.factory import build_run
from ducats.run.snapshot import save_thumbnails
from ducats.run.temperature import fit_temperature
from ducats.runfolder import records, snapshot_files
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric


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


@pytest.mark.parametrize("method", ["random", "coreset"])
def test_snapshots_do_not_change_a_classification_run(run_quickly: Runner, method: str) -> None:
    views = "views.scoring={crop: random, pad: 1}"
    without, with_ = (
        run_quickly(views, f"engine.snapshot_samples={n_samples}", method=method, folder=str(n_samples))
        for n_samples in (0, 3000)
    )
    same_bits(without, with_)
    assert not (without.path / "snapshots").exists()
    assert [one.round for one in snapshot_files.load_snapshots(with_.path)] == [1, 2, 0]
    assert not any("temperature_scaled" in stage for stage in without.stages())  # needs snapshots
    epochs = [line for line in records.read_records(with_.metrics_path) if line["kind"] == "epoch"]
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


@pytest.mark.parametrize(
    "settings",
    [
        ("task.unit=region", "query={name: random}"),
        ("task.unit=image", "acquisition={budget: 2, rounds: null, after_epochs: [1, 2]}"),
    ],
)
def test_snapshots_do_not_change_a_segmentation_run(run_pixels: Runner, settings: tuple[str, ...]) -> None:
    without, with_ = (
        run_pixels(*settings, f"engine.snapshot_samples={n_samples}", folder=str(n_samples))
        for n_samples in (0, 300)
    )
    same_bits(without, with_)
    assert [one.round for one in snapshot_files.load_snapshots(with_.path)] == [1, 2, 0]


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
    assert data.ground_truth is not None
    torch.manual_seed(3)
    model = RandomNetwork()
    for n_samples in (0, 50):
        torch.manual_seed(5)
        components = ducats.Components(
            model,
            data.source,
            data.pool,
            ducats.annotation.oracles.GroundTruthOracle(data.ground_truth),
            query=ducats.acquisition.queries.QUERIES["random"],
        )
        plan = ducats.RunPlan(
            epochs=2,
            query_epochs=(0, 1),
            budget=(3, 3),
            batch_size=8,
            steps_per_epoch=2,
            snapshot_samples=n_samples,
        )
        fabric = make_fabric("cpu")
        run_folders.append(run(components, plan, tmp_path / str(n_samples), fabric=fabric))
        draws.append(float(torch.rand(1)))
    assert draws[0] == draws[1]
    same_bits(*run_folders)
    assert len(snapshot_files.load_snapshots(run_folders[1].path)) == 3
    # The number of snapshot samples is not part of the identity.
    assert run_identity(components, plan) == run_identity(components, replace(plan, snapshot_samples=0))


def test_snapshot_samples_are_not_part_of_the_identity() -> None:
    assert quick("engine.snapshot_samples=7").digest() == quick().digest()
    assert quick_pixels("engine.snapshot_samples=0").identity() == quick_pixels().identity()


def test_snapshots_of_a_classification_run(run_quickly: Runner) -> None:
    run_folder = run_quickly("engine.snapshot_samples=60")
    first, second, end = snapshot_files.load_snapshots(run_folder.path)
    assert [(one.round, one.epoch) for one in (first, second, end)] == [(1, 1), (2, 2), (0, 4)]
    ledger, data = load_ledger(run_folder), toy()
    for one, known in ((first, 0), (second, 1), (end, 2)):
        assert (one.pool, one.source) == (len(data.pool), len(data.source))
        assert (one.sampled[one.is_target].sum(), one.sampled[~one.is_target].sum()) == (60, 20)
        targets = ledger.targets(known)
        np.testing.assert_array_equal(one.label[one.is_target], targets[one.image[one.is_target].tolist()])
        np.testing.assert_array_equal(one.is_labelled, one.is_target & (one.label != UNLABELLED))
        np.testing.assert_array_equal(
            one.image[one.is_target & one.sampled], first.image[first.is_target & first.sampled]
        )
        np.testing.assert_array_equal(
            one.label[~one.is_target], data.source.labels[one.image[~one.is_target].tolist()]
        )
    for one in (first, second):
        picks = run_folder.load_round_labels(one.round)
        assert picks is not None
        assert sorted(one.image[one.picked].tolist()) == sorted(picks.image.tolist())
        assert one.z.shape == (10, 4)
    assert not end.picked.any()
    with_thumbnail = {
        i for i in range(len(data.pool)) if snapshot_files.find_thumbnail(run_folder.path, i) is not None
    }
    assert with_thumbnail == {*ledger.targets().ge(0).nonzero().flatten().tolist()}
    assert run_folder.load_pool().keys == list(data.pool.keys)
    assert run_folder.load_pool().sizes is None


def test_snapshots_of_a_segmentation_run(run_pixels: Runner) -> None:
    run_folder = run_pixels("engine.snapshot_samples=200", "task.unit=region")
    first, second, end = snapshot_files.load_snapshots(run_folder.path)
    pool = streets(n_source=6, n_pool=5, n_test=3, height=16, width=32).pool
    assert pool.void_masks is not None
    assert first.pool == int((pool.void_masks[:] == 0).sum()) < 5 * 16 * 32
    assert sorted(set(first.image[first.is_target].tolist())) == [0, 1, 2, 3, 4]
    ledger = load_ledger(run_folder)
    for one, rounds in ((first, 0), (second, 1), (end, 2)):
        assert one.sampled[one.is_target].sum() == 200
        for image in range(5):
            labels = ledger.image_labels(image, rounds)
            known = dict(zip(labels.position.tolist(), labels.label.tolist(), strict=True))
            rows = one.is_target & (one.image == image)
            expected = [known.get(position, UNLABELLED) for position in one.position[rows].tolist()]
            assert one.label[rows].tolist() == expected
    assert second.is_labelled.sum() > 0
    for one in (first, second):
        picks = run_folder.load_round_labels(one.round)
        assert picks is not None
        selected = sorted(zip(picks.image.tolist(), picks.position.tolist(), strict=True))
        rows = zip(one.image[one.picked].tolist(), one.position[one.picked].tolist(), strict=True)
        assert sorted(rows) == selected  # few enough to include all
    found = run_folder.load_pool().sizes
    assert found is not None
    assert found.tolist() == [[16, 32]] * 5
    assert sum(snapshot_files.find_thumbnail(run_folder.path, image) is not None for image in range(5)) == 5


def test_whole_labelled_images_have_thumbnails(run_pixels: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_POOL_IMAGES", 2)
    monkeypatch.setattr(snapshot, "MAX_SEGMENTATION_THUMBNAILS", 1)
    run_folder = run_pixels("task.unit=image", "acquisition={budget: 4, rounds: null, after_epochs: [1, 2]}")
    ledger = load_ledger(run_folder)
    labelled = [set(ledger.labels_per_image(n).nonzero().flatten().tolist()) for n in (1, 2)]
    with_thumbnail = {
        image for image in range(5) if snapshot_files.find_thumbnail(run_folder.path, image) is not None
    }
    assert len(with_thumbnail) == 2  # one per round
    assert len(with_thumbnail & labelled[0]) == 1
    assert with_thumbnail <= labelled[1]
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
    whole = fit_temperature(run_folder, 2)
    assert whole is not None
    assert whole.labels == 20
    assert fit_temperature(run_folder, 0) is None
    path = run_folder.path / "labels" / "round-02.npz"
    first = run_folder.load_round_labels(2)
    assert first is not None
    path.unlink()
    one = fit_temperature(run_folder, 2)
    assert one is not None
    assert one.labels == 10
    ledger = load_ledger(run_folder)
    fewer = torch.from_numpy(first.image[:4].copy()), torch.zeros(4, dtype=torch.long)
    ledger.append(Request(2, *fewer), torch.tensor([VOID, *first.label[1:4].tolist()]))
    some = fit_temperature(run_folder, 2)
    assert some is not None
    assert some.labels == 13
    snapshot_files.snapshot_path(run_folder.path, 1).unlink()
    assert fit_temperature(run_folder, 2) is None  # three labels are too few


def test_a_lost_snapshot_is_not_recreated_from_a_later_model(run_quickly: Runner) -> None:
    """After a round is labelled, the model before it no longer exists."""
    run_folder = run_quickly()
    snapshot_files.snapshot_path(run_folder.path, 1).unlink()
    (run_folder.path / "model.safetensors").unlink()
    assert run_quickly().finished
    assert [one.round for one in snapshot_files.load_snapshots(run_folder.path)] == [2, 0]


def test_thumbnails(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path)
    generator = torch.Generator().manual_seed(0)

    def make_images(channels: int, height: int, width: int) -> Images:
        pixels = torch.randint(256, (2, channels, height, width), generator=generator, dtype=torch.uint8)
        return Images(("a", "b"), pixels)

    save_thumbnails(run_folder, make_images(1, 20, 30), [0])
    path = snapshot_files.find_thumbnail(tmp_path, 0)
    assert path is not None
    assert path.suffix == ".png"
    with Image.open(path) as thumbnail:
        assert thumbnail.size == (30, 20)
    before = path.read_bytes()
    save_thumbnails(run_folder, make_images(1, 20, 30), [0])
    assert path.read_bytes() == before  # an existing one is not replaced
    save_thumbnails(run_folder, make_images(3, 400, 200), [1])
    path = snapshot_files.find_thumbnail(tmp_path, 1)
    assert path is not None
    assert path.suffix == ".jpg"
    with Image.open(path) as thumbnail:
        assert (thumbnail.size, thumbnail.format) == ((80, 160), "JPEG")
    assert path.stat().st_size < 20_000
    # Images that cannot be shown or are missing are skipped.
    save_thumbnails(RunFolder(tmp_path / "other"), make_images(2, 20, 30), [0])
    gone = replace(make_images(3, 20, 30), files=(tmp_path / "gone.png",) * 2)
    save_thumbnails(RunFolder(tmp_path / "other"), gone, [0])
    assert snapshot_files.find_thumbnail(tmp_path / "other", 0) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
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
