"""Every objective works with queries, and its state is saved with the run."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Runner, quick, quick_pixels
from ducats.config import Config
from ducats.data.toy import toy
from ducats.ledger import Request, load_ledger
from ducats.run import run
from ducats.run.checkpoint import load_checkpoint
from ducats.run.factory import build_run, make_model
from ducats.runfolder import records
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric

LOSSES = {
    "duc": {"source/nll", "unlabelled/u_dis", "labelled/kl"},
    "euq": {"unlabelled/eu", "unlabelled/au", "pseudo_labelled/nll"},
    "softmax": {"source/nll", "labelled/nll"},
    "adversarial": {"domain/nll", "unlabelled/entropy"},
    "waal": {"critic/distance", "critic/penalty"},
    "mme": {"unlabelled/entropy"},
    "eada": {"unlabelled/energy"},
    "tqs": {"probe/committee", "probe/domain"},
    "sdm": {"source/margin", "labelled/logit"},
}
ENTROPY = "query={name: entropy, params: {}}"
SHORT = ("train.epochs=3", "train.steps_per_epoch=2", "acquisition={after_epochs: [1], rounds: null}")


def run_config(config: Config, folder: Path, stop: int | None = None) -> RunFolder:
    components, plan = build_run(config, RunFolder(folder))
    fabric = make_fabric("cpu")
    fabric.launch()

    def on_event(event: Any) -> None:
        if stop is not None and event.phase == "train" and event.step == stop:
            raise KeyboardInterrupt

    return run(components, plan, folder, fabric=fabric, identity=config.identity(), on_event=on_event)


def losses_of(run_folder: RunFolder) -> list[dict[str, float]]:
    lines = records.read_records(run_folder.metrics_path)
    return [line["losses"] for line in lines if line["kind"] == "epoch"]


@pytest.mark.parametrize(
    ("objective", "pixels"),
    [*((name, False) for name in LOSSES), *((name, True) for name in ("duc", "adversarial", "waal", "mme"))],
)
def test_losses_are_recorded_and_labels_acquired(objective: str, pixels: bool, tmp_path: Path) -> None:
    make_config = quick_pixels if pixels else quick
    config = make_config(*SHORT, f"objective={{name: {objective}, params: {{}}}}", ENTROPY)
    run_folder = run_config(config, tmp_path / "run")
    assert {"source/nll", "labelled/nll", *LOSSES[objective]} <= losses_of(run_folder)[-1].keys()
    assert pixels or len(load_ledger(run_folder)) == 20


@pytest.mark.parametrize(
    "objective",
    [
        "{name: eada, params: {align: 0.1}}",
        "{name: tqs, params: {}}",
        "{name: euq, params: {certainty_rate: 0.05}}",
        "{name: duc, params: {propagation_rate: 0.05, fixmatch: 1.0, tau: 0.3}}",
        "{name: proda, params: {hidden: 4, warmup: 0.25, distillation_start: 0.75}}",
        "{name: seg_uncertainty, params: {hidden: 4}}",
        "{name: mada, params: {n_anchors: 2}}",
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(objective: str, tmp_path: Path) -> None:
    settings = ("train.steps_per_epoch=3", f"objective={objective}", ENTROPY)
    if any(name in objective for name in ("proda", "seg_uncertainty", "mada")):
        config = quick_pixels(*settings)
    else:
        strong = "views.strong={crop: none, randaugment: [2, 10], cutout: 0.5}"
        config = quick(*settings, strong, "train.unlabelled_includes_labelled=true")
    full = run_config(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_config(config, tmp_path / "cut", stop=8)
    resumed = run_config(config, tmp_path / "cut")
    assert losses_of(full) == losses_of(resumed)
    assert full.read_records("pseudo_labels") == resumed.read_records("pseudo_labels")
    whole, cut = (run_folder.path / "model.safetensors" for run_folder in (full, resumed))
    assert whole.read_bytes() == cut.read_bytes()


@pytest.mark.parametrize(
    ("objective", "refreshes"),
    [
        ("{name: softmax, params: {propagation_rate: 0.1}}", [(1, 2, 8), (2, 3, 16)]),
        ("{name: euq, params: {certainty_rate: 0.1}}", [(0, 1, 8), (1, 2, 24)]),
    ],
)
def test_pseudo_labels_are_recorded_and_not_spent(
    objective: str, refreshes: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    run_folder = run_config(quick(f"objective={objective}", ENTROPY), tmp_path / "run")
    found = run_folder.read_records("pseudo_labels")
    assert [(record["stage"], record["epoch"], record["count"]) for record in found] == refreshes
    first = found[0]["epoch"]
    assert ["pseudo_labelled/nll" in losses for losses in losses_of(run_folder)] == [
        epoch >= first for epoch in range(4)
    ]
    assert [stage["labels"] for stage in run_folder.stages()] == [0, 10, 20]
    assert len(load_ledger(run_folder)) == 20
    # The recorded truth is that of the pool; the pseudo-labels of the last refresh are in the checkpoint.
    checkpoint = load_checkpoint(run_folder)
    assert checkpoint is not None
    labels, truth = checkpoint["auxiliaries"]["objective.labels"], toy().ground_truth
    assert truth is not None
    acquired = torch.zeros(80, dtype=torch.bool)
    ledger = load_ledger(run_folder)
    acquired[
        [ledger.keys.index(entry.key) for entry in ledger.entries() if entry.round <= found[-1]["stage"]]
    ] = True
    used = (labels >= 0) & ~acquired
    assert int(used.sum()) == found[-1]["count"]
    assert int((labels == torch.as_tensor(truth[:]))[used].sum()) == found[-1]["correct"]


def test_without_ground_truth_only_the_number_is_recorded(tmp_path: Path) -> None:
    components, plan = build_run(
        quick("objective={name: softmax, params: {propagation_rate: 0.1}}", ENTROPY), RunFolder(tmp_path)
    )
    oracle = components.oracle
    asked: list[int] = []

    def annotators(request: Request) -> Any:
        asked.extend(request.image.tolist())
        return oracle(request)

    fabric = make_fabric("cpu")
    fabric.launch()
    run_folder = run(replace(components, oracle=annotators), plan, tmp_path / "run", fabric=fabric)
    found = run_folder.read_records("pseudo_labels")
    assert [record["count"] for record in found] == [8, 16]
    assert not any("correct" in record for record in found)
    assert len(asked) == 20


# Parameters of self-training methods, and in which of the four epochs their losses are above 0.
SELF_TRAINING: dict[str, tuple[str, dict[str, list[int]]]] = {
    "mrkld": ("{warmup: 0.5, rounds: 2}", {"pseudo/nll": [0, 0, 1, 1]}),
    "seg-uncertainty": (
        "{hidden: 4}",
        {"source/nll": [1, 1, 0, 0], "target/memory": [0, 1, 0, 0], "pseudo/rectified": [0, 0, 1, 1]},
    ),
    "tpld": (
        "{hidden: 4, warmup: 0.25, rounds: 3, easy_fraction: 0.8}",
        {"pseudo/nll": [0, 1, 1, 1], "domain/nll": [0, 0, 0, 1]},
    ),
    "proda": (
        "{hidden: 4, warmup: 0.25, distillation_start: 0.75, confidence_threshold: 0.2}",
        {"domain/least_squares": [1, 0, 0, 0], "pseudo/rce": [0, 1, 1, 0], "pseudo/nll": [0, 1, 1, 1]},
    ),
    "mada": ("{}", {"pseudo/nll": [0, 0, 1, 1]}),
}


@pytest.mark.parametrize(
    ("method", "labels"), [*((method, True) for method in SELF_TRAINING), ("seg-uncertainty", False)]
)
def test_stages_of_self_training(run_pixels: Runner, method: str, labels: bool) -> None:
    params, stages = SELF_TRAINING[method]
    # The objective of MADA with another query.
    rounds = ["task.unit=pixel", "query={name: entropy}"] if method == "mada" else []
    if not labels:
        rounds = ["acquisition={rounds: 0, after_epochs: null}"]
    losses = losses_of(run_pixels(f"objective.params={params}", *rounds, method=method))
    for name, positive in stages.items():
        assert [loss[name] > 0 for loss in losses] == [bool(one) for one in positive]
    assert ("labelled/nll" in losses[-1]) == labels
    assert method != "seg-uncertainty" or ("labelled/aux" in losses[-1]) == labels


def test_a_classification_run_with_pseudo_labels(tmp_path: Path) -> None:
    config = quick("objective={name: mrkld, params: {warmup: 0.5}}", method="entropy")
    losses = losses_of(run_config(config, tmp_path / "run"))
    assert losses[1]["pseudo/nll"] == 0 < losses[2]["pseudo/nll"]


@pytest.mark.parametrize("stays", [True, False])
def test_entropy_of_clue_includes_labelled_images(tmp_path: Path, stays: bool) -> None:
    """Published: images keep their place in the unlabelled stream after they are labelled."""
    # A step shows all 80 images of the pool (60 if labelled ones leave), and the model does not change.
    sizes = f"train={{batch_size: {80 if stays else 60}, steps_per_epoch: 1, lr: 1.0e-12}}"
    settings = [sizes] if stays else [sizes, "train.unlabelled_includes_labelled=false"]
    config = quick(*settings, method="clue")
    run_folder = run_config(config, tmp_path / "run")
    labelled = {entry.key for entry in load_ledger(run_folder).entries()}
    pool = toy().pool
    model = make_model(config, classes=4, channels=3).train()
    shown = [stays or key not in labelled for key in pool.keys]
    probability = model(pool.pixels[torch.tensor(shown)].float() / 255).z.softmax(1).tolist()
    entropies = [-sum(p * math.log(p) for p in row) for row in probability]
    assert len(entropies) == (80 if stays else 60)
    last = losses_of(run_folder)[-1]
    assert last["unlabelled/entropy"] == pytest.approx(-0.1 * sum(entropies) / len(entropies), rel=1e-5)


def test_pixels_of_clue_are_not_affected(tmp_path: Path) -> None:
    losses = []
    for stays in ("true", "false"):
        config = quick_pixels(f"train.unlabelled_includes_labelled={stays}", method="clue")
        losses.append(losses_of(run_config(config, tmp_path / stays)))
    assert losses[0] == losses[1]
