"""Every objective works with queries, and its state is saved with the run."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Runner, quick, quick_pixels
from ducats.config import Config
from ducats.ledger import load_ledger
from ducats.run import run
from ducats.run.factory import build_run
from ducats.runfolder import records
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils.errors import UserError

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
PIXEL_OBJECTIVES = {"duc", "softmax", "adversarial", "waal", "mme", "eada", "sdm"}
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
    lines = [line for line in records.read_records(run_folder.metrics_path) if line["kind"] == "epoch"]
    return [json.loads(json.dumps(line["losses"])) for line in lines]


@pytest.mark.parametrize("objective", LOSSES)
def test_images(objective: str, tmp_path: Path) -> None:
    config = quick(
        *SHORT, f"objective={{name: {objective}, params: {{}}}}", "query={name: entropy, params: {}}"
    )
    run_folder = run_config(config, tmp_path / "run")
    assert LOSSES[objective] <= losses_of(run_folder)[-1].keys()
    assert len(load_ledger(run_folder)) == 20


@pytest.mark.parametrize("objective", sorted(PIXEL_OBJECTIVES))
def test_pixels(objective: str, tmp_path: Path) -> None:
    config = quick_pixels(
        *SHORT, f"objective={{name: {objective}, params: {{}}}}", "query={name: entropy, params: {}}"
    )
    found = losses_of(run_config(config, tmp_path / "run"))[-1]
    assert {"source/nll", "labelled/nll", *LOSSES[objective]} <= found.keys()


@pytest.mark.parametrize("objective", ["tqs", "euq", "duc"])
def test_image_only_features_raise_for_pixels(objective: str, tmp_path: Path) -> None:
    params = "{certainty_rate: 0.1}" if objective == "duc" else "{}"
    config = quick_pixels(f"objective={{name: {objective}, params: {params}}}")
    with pytest.raises(UserError, match="pixels"):
        run_config(config, tmp_path / "run")


@pytest.mark.parametrize(
    "objective",
    [
        "{name: eada, params: {align: 0.1}}",
        "{name: waal, params: {weight: 0.1}}",
        "{name: tqs, params: {}}",
        "{name: duc, params: {certainty_rate: 0.05, fixmatch: 1.0, tau: 0.3}}",
        "{name: proda, params: {hidden: 4, warmup: 0.25, distillation_start: 0.75}}",
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(objective: str, tmp_path: Path) -> None:
    settings = ("train.steps_per_epoch=3", f"objective={objective}", "query={name: entropy, params: {}}")
    if "proda" in objective:
        config = quick_pixels(*settings)
    else:
        config = quick(*settings, "views.strong={crop: none, randaugment: [2, 10], cutout: 0.5}")
    full = run_config(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_config(config, tmp_path / "cut", stop=8)
    resumed = run_config(config, tmp_path / "cut")
    assert losses_of(full) == losses_of(resumed)
    weights = [(run_folder.path / "model.safetensors").read_bytes() for run_folder in (full, resumed)]
    assert weights[0] == weights[1]


# Parameters of self-training methods, and in which of the four epochs their losses are above 0.
SELF_TRAINING: dict[str, tuple[str, dict[str, list[int]]]] = {
    "mrkld": ("{warmup: 0.5, rounds: 2}", {"pseudo/nll": [0, 0, 1, 1]}),
    "seg-uncertainty": ("{hidden: 4}", {"target/memory": [1, 1, 0, 0], "pseudo/rectified": [0, 0, 1, 1]}),
    "tpld": (
        "{hidden: 4, warmup: 0.25, rounds: 3, easy_fraction: 0.8}",
        {"pseudo/nll": [0, 1, 1, 1], "domain/nll": [0, 0, 0, 1]},
    ),
    "proda": (
        "{hidden: 4, warmup: 0.25, distillation_start: 0.75, confidence_threshold: 0.2}",
        {"pseudo/rce": [0, 1, 1, 0], "pseudo/nll": [0, 1, 1, 1]},
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
