"""Records for synthetic run folders: stages with consistent metrics, losses, times."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ducats import config
from synthetic_snapshots import _Array

BINS = 15


def rising(method: str, seed: int, rounds: int) -> list[float]:
    top = {"duc": 0.9, "random": 0.82}.get(method, 0.86) + 0.005 * (seed % 3)
    return [round(0.5 + (top - 0.5) * (1 - (1 - stage / rounds) ** 2), 3) for stage in range(rounds + 1)]


def stage_record(stage: int, epoch: int, labels: int, accuracy: float, classes: int) -> dict[str, Any]:
    """Return a stage record computed from 1000 synthetic predictions with the given accuracy."""
    draw = np.random.default_rng([stage, 21])
    confidence = draw.beta(6, 2.5, 1000)
    right = np.zeros(1000, bool)
    right[np.argsort(-(confidence + draw.normal(0, 0.2, 1000)))[: round(1000 * accuracy)]] = True
    label = draw.integers(0, classes, 1000)
    per_class = [float(right[label == k].mean()) for k in range(classes)]
    return {
        "kind": "stage",
        "stage": stage,
        "epoch": epoch,
        "labels": labels,
        "evaluated_on": "held_out",
        "images": 1000,
        "accuracy": accuracy,
        "mean_class_accuracy": float(np.mean(per_class)),
        "mean_iou": round(accuracy**1.5, 6),
        **_errors(confidence, right),
        "class_accuracy": per_class,
        "reliability": _reliability(confidence, right),
    }


def _errors(confidence: _Array, right: _Array) -> dict[str, float]:
    table = _reliability(confidence, right)
    gaps = [
        n * abs(c - a)
        for n, c, a in zip(table["count"], table["confidence"], table["accuracy"], strict=True)
        if n
    ]
    chance = np.where(right, confidence, 1 - confidence).clip(1e-6)
    risk = np.cumsum(~right[np.argsort(-confidence)]) / np.arange(1, len(right) + 1)
    return {
        "ece": sum(gaps) / len(confidence),
        "nll": float(-np.log(chance).mean()),
        "brier": float(((1 - chance) ** 2).mean()),
        "aurc": float(risk.mean()),
    }


def _reliability(confidence: _Array, right: _Array) -> dict[str, list[Any]]:
    place = np.ceil(confidence * BINS).clip(1, BINS).astype(int) - 1
    inside = [place == number for number in range(BINS)]
    return {
        "upper": [(number + 1) / BINS for number in range(BINS)],
        "count": [int(some.sum()) for some in inside],
        "confidence": [float(confidence[some].mean()) if some.any() else None for some in inside],
        "accuracy": [float(right[some].mean()) if some.any() else None for some in inside],
    }


def _tempered(record: Mapping[str, Any]) -> dict[str, Any]:
    draw = np.random.default_rng([record["stage"], 22])
    right = draw.random(1000) < record["accuracy"]
    confidence = np.clip(np.where(right, draw.beta(9, 2, 1000), draw.beta(3, 3, 1000)), 0.1, 1.0)
    errors = _errors(confidence, right)
    kept = {key: errors[key] for key in ("ece", "nll", "brier")}
    about = {"temperature": 1.3 + 0.1 * record["stage"], "labels": record["labels"]}
    return {**about, **kept, "reliability": _reliability(confidence, right)}


def write_records(
    folder: Path, settled: config.Config, stages: Sequence[dict[str, Any]], *, before: bool, finished: bool
) -> None:
    """Write the records in chronological order and, if finished, the final model file."""
    lines: list[dict[str, Any]] = []
    for stage in stages:
        if not before:
            stage["memory"] = 300_000_000 + 1_000_000 * stage["stage"]
            if stage["stage"]:
                stage["temperature_scaled"] = _tempered(stage)
    for epoch in range(settled.train.epochs + 1 if finished else stages[-1]["epoch"] + 1):
        if epoch:
            losses = {"source/nll": 2.0 / (epoch + 1), "source/kl": 0.3 / epoch}
            losses |= {"unlabelled/u_dis": 0.5 / epoch, "unlabelled/u_data": 0.2 + 0.1 / epoch}
            if epoch > stages[0]["epoch"]:
                losses["labelled/nll"] = 1.5 / epoch
            timed = {} if before else {"seconds": 0.5}
            lines.append({"kind": "epoch", "epoch": epoch, "losses": losses, **timed})
        lines += [stage for stage in stages if stage["epoch"] == epoch]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        (folder / "model.safetensors").touch()
