"""Model card of an exported model: training data, metrics and usage."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ducats.data.domain import UNLABELLED
from ducats.deploy.preprocessing import Preprocessing
from ducats.deploy.trained_model import TrainedModel
from ducats.deploy.triage_rule import TriageRule
from ducats.ledger import Ledger, load_ledger
from ducats.models import MODELS
from ducats.run.factory import model_params
from ducats.runfolder.records import (
    EVALUATED_ON_DESCRIPTIONS,
    describe_audit,
    describe_audited,
    describe_random_gain,
    describe_timed,
)
from ducats.utils.findings import join_names, pluralise

_CARD_METRICS = {
    "accuracy": "accuracy (fraction of correct labels)",
    "mean_iou": "mean IoU over classes",
    "mean_class_accuracy": "mean accuracy over classes",
    "nll": "negative log-likelihood (nats)",
    "ece": "expected calibration error (0 is perfect)",
    "brier": "Brier score",
    "aurc": "area under the risk-coverage curve",
}
_MAX_LISTED_CLASSES = 50
READER_FILE = "read_image.py"  # a copy of utils/image_files.py
_ONNX_CODE = f"""```python
import json
from pathlib import Path
import numpy as np
import onnxruntime
from {READER_FILE.removesuffix(".py")} import load_image  # in this folder
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
about = {{name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}}
image = load_image(Path("image.png"), about["range"]).convert(about["mode"])
images = np.asarray(image).reshape(1, image.height, image.width, -1)"""


def render_model_card(
    trained: TrainedModel,
    preprocess: Preprocessing,
    *,
    onnx_check: str | None,
    batch_size: int | None,
    rule: TriageRule | None,
) -> str:
    """Return the text of MODEL_CARD.md.

    Args:
        onnx_check: result of the check of the ONNX graph; None if there is no graph.
        batch_size: fixed batch size of the graph; None means any.
    """
    sections = {
        f"# {trained.run_folder.path.resolve().name}": _summary_lines(trained),
        "## Training": _training_lines(trained),
        "## Evaluation": _evaluation_lines(trained),
        "## Triage": _triage_lines(rule),
    }
    if onnx_check:
        sections["## Use with ONNX Runtime"] = _onnx_lines(trained, preprocess, onnx_check, batch_size)
    sections["## Load in PyTorch"] = _loading_lines(trained)
    return "\n".join(line for title, lines in sections.items() for line in (title, "", *lines, ""))


def _summary_lines(trained: TrainedModel) -> Iterator[str]:
    unit, names = "pixel" if trained.per_pixel else "image", join_names(trained.classes, _MAX_LISTED_CLASSES)
    yield f"{pluralise(len(trained.classes), 'class')}, a class for each {unit}: {names}. See `classes.txt`."
    yield ""
    yield "The model also outputs two uncertainties in nats. `u_dis` is due to a lack of evidence: it is high"
    yield "for images unlike the training images. `u_data` is due to class overlap: it is high for images"
    yield "between classes. Their sum is the entropy of `probability`."


def _training_lines(trained: TrainedModel) -> Iterator[str]:
    config, data, ledger = trained.config, trained.run_folder.data_summary, load_ledger(trained.run_folder)
    params = config.data.params
    names = {
        role: f" ({Path(str(params[role])).name})" if params.get(role) else ""
        for role in ("source", "target")
    }
    task = f", task {params['task']}" if params.get("task") else ""
    yield f"- data: `{config.data.name}`{task}"
    yield f"- source{names['source']}: {pluralise(data['source']['images'], 'labelled image')}"
    yield f"- target{names['target']}: {pluralise(data['pool']['images'], 'image')}"
    spent = pluralise(ledger.spent(), f"target {'pixel' if trained.per_pixel else 'image'}")
    n_corrected = ledger.n_corrected
    corrected = f", {n_corrected} of them corrected" if n_corrected else ""
    n_rounds = len({ledger.spent(rounds) for rounds in range(ledger.n_rounds + 1)}) - 1
    audit = _audit_share(trained, ledger)
    yield f"- acquired labels: {spent} in {pluralise(n_rounds, 'round')}{corrected}{audit}"
    if (seconds := ledger.seconds()) is not None:
        timed = describe_timed(ledger.n_timed_units(), ledger.n_units())
        yield f"- annotation: {seconds / 60:.1f} minutes{f' ({timed})' if timed else ''}"
    yield f"- method: query `{config.query.name}`, objective `{config.objective.name}`, seed {config.seed}"
    model_config = config.model
    arguments = json.dumps(model_params(config))
    yield f"- model: `{model_config.name}` {arguments}, evidence `{model_config.evidence}`"
    modified = datetime.fromtimestamp(trained.run_folder.model_path.stat().st_mtime, UTC)
    epochs = pluralise(config.train.epochs, "epoch")
    yield f"- date: {modified:%Y-%m-%d}, {epochs} in `{config.engine.precision}`"
    versions = trained.run_folder.environment.get("versions", {})
    if versions:
        yield f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}"


def _evaluation_lines(trained: TrainedModel) -> Iterator[str]:
    stages = trained.run_folder.stages()
    last = stages[-1] if stages else {}
    names = [name for name in _CARD_METRICS if trained.per_pixel or name != "mean_iou"]
    metrics = {_CARD_METRICS[name]: last[name] for name in names if isinstance(last.get(name), float)}
    audits = trained.run_folder.read_records("audit")
    if audits:
        described = describe_audit(audits[-1])
        yield f"By the audit: {described}. They are a random"
        yield f"sample of the {describe_audited(audits[-1])} of the target that the model was not trained on."
        if trained.config.acquisition.release_audit:
            yield "Then the model was trained on the audit labels, too. The figures are those before."
        for record in trained.run_folder.read_records("random_gain"):
            yield describe_random_gain(record)
        if not metrics:
            return
        yield ""
    if not metrics:
        yield "Not evaluated: the run had no labelled images outside its training set."
        return
    pixels_text = f", {last['pixels']} pixels" if "pixels" in last else ""
    images = pluralise(last["images"], "image")
    yield f"On {EVALUATED_ON_DESCRIPTIONS[last['evaluated_on']]}: {images}{pixels_text}."
    yield ""
    yield "| metric | value |"
    yield "|---|---|"
    for description, value in metrics.items():
        yield f"| {description} | {value:.4f} |"


def _audit_share(trained: TrainedModel, ledger: Ledger) -> str:
    """Say how many labels are for the audit; empty if none are."""
    n_audit = len(ledger.audit_pixels().image) if trained.per_pixel else 0
    if not trained.per_pixel:
        n_audit = int((ledger.audit_labels() != UNLABELLED).sum())
    if not n_audit:
        return ""
    is_released = trained.config.acquisition.release_audit
    return f"; {n_audit} of them for the audit{'' if is_released else ', not trained on'}"


def _triage_lines(rule: TriageRule | None) -> Iterator[str]:
    if rule is None:
        yield "No threshold is set; run `ducats triage` to find one for a given risk."
        return
    yield f"{rule.describe()[0].upper()}{rule.describe()[1:]}."
    accepted_text = f"{rule.accepted} of {rule.images} accepted, {rule.wrong} of them wrong"
    yield f"Calibrated on {rule.calibrated_on}: {accepted_text}."
    for warning in rule.warnings:
        yield f"Warning: {warning}."


def _onnx_lines(
    trained: TrainedModel, preprocess: Preprocessing, onnx_check: str | None, batch_size: int | None
) -> Iterator[str]:
    count_text = "any number of" if batch_size is None else str(batch_size)
    shape = f"{batch_size or 'N'}, height, width, {preprocess.channels}"
    yield f"`model.onnx` takes {count_text} images of one size, whichever it is, as uint8 ({shape}),"
    yield f"{preprocess.mode}. It resizes and normalises them itself. `{READER_FILE}` reads image files as in"
    yield "training: orientation, transparency, range of values. It needs only NumPy and Pillow."
    yield "`preprocess.json` lists all steps."
    yield f"Checked at export: {onnx_check}."
    if trained.per_pixel:
        yield f"Output maps have {preprocess.size[0]} x {preprocess.size[1]} pixels."
    yield ""
    yield _ONNX_CODE
    if batch_size is not None and batch_size > 1:
        yield f"images = np.repeat(images, {batch_size}, axis=0)"
    yield 'probability, u_dis, u_data, label = session.run(None, {"images": images})'
    if trained.per_pixel:
        yield 'print([about["classes"][i] for i in np.unique(label[0])], u_dis[0].mean(), u_data[0].mean())'
    else:
        yield 'print(about["classes"][label[0]], probability[0].max(), u_dis[0], u_data[0])'
    yield "```"


def _loading_lines(trained: TrainedModel) -> Iterator[str]:
    model_config = trained.config.model
    if ":" in model_config.name:
        yield f"`model.safetensors` holds the weights of the network built by `{model_config.name}`."
        return
    classes = trained.run_folder.classes
    params = {"classes": len(classes), "channels": trained.channels, **model_params(trained.config)}
    arguments = ", ".join(f"{name}={value!r}" for name, value in params.items())
    builder = "build_without_weights" if MODELS[model_config.name].build_without_weights else "build"
    yield "The network takes images in [0, 1], normalises them itself and outputs logits. The evidence"
    yield f"function `{model_config.evidence}` maps them to log alpha."
    groups = ""
    if classes.groups is not None:
        groups = f", groups={classes.groups}"
        yield "Some classes were merged: `groups` has the class of each logit. The evidence of a class is the"
        yield "sum over its logits."
    yield ""
    yield "```python"
    yield "from safetensors.torch import load_file"
    yield "from ducats.models import MODELS, EvidentialModel"
    yield f'network = MODELS["{model_config.name}"].{builder}({arguments})'
    yield 'network.load_state_dict(load_file("model.safetensors"))'
    yield f'model = EvidentialModel(network, "{model_config.evidence}"{groups}).eval()'
    yield "```"
