"""Model card of an exported model: training data, metrics and usage."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ducats.inference.preprocess import Preprocess
from ducats.inference.rule import Rule
from ducats.inference.trained import Trained
from ducats.models import MODELS_WITHOUT_WEIGHTS
from ducats.records import EVALUATED_ON_DESCRIPTIONS

METRICS = {
    "accuracy": "accuracy (fraction of correct labels)",
    "mean_iou": "mean IoU over classes",
    "mean_class_accuracy": "mean accuracy over classes",
    "nll": "negative log-likelihood (nats)",
    "ece": "expected calibration error (0 is perfect)",
    "brier": "Brier score",
    "aurc": "area under the risk-coverage curve",
}
SHOWN_CLASSES = 50


def card(
    trained: Trained, preprocess: Preprocess, *, onnx: str | None, batch: int | None, rule: Rule | None
) -> str:
    """Return the text of MODEL_CARD.md.

    Args:
        onnx: result of the check of the ONNX graph; None if there is no graph.
        batch: fixed batch size of the graph; None means any.
        rule: triage rule; None if `ducats triage` was not run.
    """
    return "\n".join(
        [
            f"# {trained.home.path.resolve().name}",
            "",
            *_what(trained),
            "",
            "## Training",
            "",
            *_trained_on(trained),
            "",
            "## Evaluation",
            "",
            *_measured(trained),
            "",
            "## Triage",
            "",
            *_triage(rule),
            "",
            *(["## Use with ONNX Runtime", "", *_call(trained, preprocess, onnx, batch), ""] if onnx else []),
            "## Load in PyTorch",
            "",
            *_load(trained),
            "",
        ]
    )


def _what(trained: Trained) -> Iterator[str]:
    names = trained.classes[:SHOWN_CLASSES]
    more = f" and {len(trained.classes) - len(names)} more" if len(trained.classes) > len(names) else ""
    kind = "a class for each pixel" if trained.of_pixels else "a class for each image"
    yield f"{len(trained.classes)} classes, {kind}: {', '.join(names)}{more}. See `classes.txt`."
    yield ""
    yield "The model also outputs two uncertainties in nats. `u_dis` is due to a lack of evidence: it is high"
    yield "for images unlike the training images. `u_data` is due to class overlap: it is high for images"
    yield "between classes. Their sum is the entropy of `probability`."


def _trained_on(trained: Trained) -> Iterator[str]:
    config, data, ledger = trained.config, trained.home.data_summary, trained.home.load_ledger()
    params = config.data.params
    names = {
        role: f" ({Path(str(params[role])).name})" if params.get(role) else ""
        for role in ("source", "target")
    }
    task = f", task {params['task']}" if params.get("task") else ""
    yield f"- data: `{config.data.name}`{task}"
    yield f"- source{names['source']}: {data['source']['images']} labelled images"
    yield f"- target{names['target']}: {data['pool']['images']} images"
    unit = "pixels" if trained.of_pixels else "images"
    yield f"- acquired labels: {ledger.spent()} target {unit} in {ledger.n_rounds} rounds"
    yield f"- method: query `{config.query.name}`, objective `{config.objective.name}`, seed {config.seed}"
    part = config.model
    yield f"- model: `{part.name}` {json.dumps(dict(part.params))}, evidence `{part.evidence}`"
    weights = trained.home.path / "model.safetensors"
    made = datetime.fromtimestamp(weights.stat().st_mtime, UTC)
    yield f"- date: {made:%Y-%m-%d}, {config.train.epochs} epochs in `{config.engine.precision}`"
    versions = _environment(trained.home.path).get("versions", {})
    if versions:
        yield f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}"


def _environment(folder: Path) -> Mapping[str, Any]:
    path = folder / "environment.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _measured(trained: Trained) -> Iterator[str]:
    stages = trained.home.stages()
    last = stages[-1] if stages else {}
    names = [name for name in METRICS if trained.of_pixels or name != "mean_iou"]
    found = {METRICS[name]: last[name] for name in names if isinstance(last.get(name), float)}
    if not found:
        yield "Not evaluated: the run had no labelled images outside its training set."
        return
    pixels = f", {last['pixels']} pixels" if "pixels" in last else ""
    yield f"On {EVALUATED_ON_DESCRIPTIONS[last['evaluated_on']]}: {last['images']} images{pixels}."
    yield ""
    yield "| metric | value |"
    yield "|---|---|"
    for words, value in found.items():
        yield f"| {words} | {value:.4f} |"


def _triage(rule: Rule | None) -> Iterator[str]:
    if rule is None:
        yield "No threshold is set; run `ducats triage` to find one for a given risk."
        return
    yield f"{rule.in_words()[0].upper()}{rule.in_words()[1:]}."
    yield f"Calibrated on {rule.on}: {rule.accepted} of {rule.images} accepted, {rule.wrong} of them wrong."
    for caution in rule.cautions:
        yield f"Warning: {caution}."


def _call(trained: Trained, preprocess: Preprocess, onnx: str | None, batch: int | None) -> Iterator[str]:
    height, width = preprocess.size
    many = "any number of" if batch is None else str(batch)
    shape = f"{batch or 'N'}, {preprocess.channels}, {height}, {width}"
    yield f"`model.onnx` takes {many} images as float32 ({shape}) in [0, 1] and normalises them itself."
    yield "`preprocess.json` lists the preprocessing steps, including transparency and 16-bit images."
    yield f"Checked at export: {onnx}."
    if trained.of_pixels:
        yield "Output maps have the size of the input."
    yield ""
    yield "```python"
    yield "from pathlib import Path"
    yield "import numpy as np"
    yield "import onnxruntime"
    yield "from PIL import Image, ImageOps"
    yield 'session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])'
    yield 'classes = Path("classes.txt").read_text(encoding="utf-8").splitlines()'
    yield from preprocess.as_code()
    if batch is not None and batch > 1:
        yield f"images = np.repeat(images, {batch}, axis=0)"
    yield 'probability, u_dis, u_data, label = session.run(None, {"images": images})'
    if trained.of_pixels:
        yield "print([classes[number] for number in np.unique(label[0])], u_dis[0].mean(), u_data[0].mean())"
    else:
        yield "print(classes[label[0]], probability[0].max(), u_dis[0], u_data[0])"
    yield "```"


def _load(trained: Trained) -> Iterator[str]:
    part = trained.config.model
    if ":" in part.name:
        yield f"`model.safetensors` holds the weights of the network built by `{part.name}`."
        return
    params = {"classes": len(trained.classes), "channels": trained.channels, **part.params}
    given = ", ".join(f"{name}={value!r}" for name, value in params.items())
    table = "BLANK" if part.name in MODELS_WITHOUT_WEIGHTS else "MODELS"
    yield "The network takes images in [0, 1], normalises them itself and outputs logits. The evidence"
    yield f"function `{part.evidence}` maps them to log alpha."
    yield ""
    yield "```python"
    yield "from safetensors.torch import load_file"
    yield f"from ducats.models import {table}, Evidential"
    yield f'network = {table}["{part.name}"]({given})'
    yield 'network.load_state_dict(load_file("model.safetensors"))'
    yield f'model = Evidential(network, "{part.evidence}").eval()'
    yield "```"
