"""Export a finished model for use without this library."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ducats.data.views import apply_view, sample_view_params
from ducats.deploy.inference_graph import InferenceGraph, StoredImageGraph
from ducats.deploy.model_card import READER_FILE, render_model_card
from ducats.deploy.onnx import (
    DEFAULT_OPSET,
    OnnxDifference,
    accept_any_size,
    check_onnx,
    require_onnx,
    trace_onnx,
    write_onnx,
)
from ducats.deploy.pool_images import load_images
from ducats.deploy.preprocessing import Preprocessing, make_preprocessing, normalisation
from ducats.deploy.trained_model import TrainedModel
from ducats.deploy.triage_rule import load_triage_rule
from ducats.ledger import load_ledger
from ducats.utils import image_files
from ducats.utils.errors import UserError
from ducats.utils.files import write_atomically, write_text_atomically
from ducats.utils.randomness import make_generator

_CHECK_IMAGES = 4  # images that the graph is checked on


class ExportResult(NamedTuple):
    """Output folder of an export, and the result of the check of the ONNX graph."""

    folder: Path
    difference: OnnxDifference | None  # None if no graph was exported
    checked_on: str


def export(
    trained: TrainedModel,
    out: Path,
    *,
    onnx: bool = False,
    opset: int = DEFAULT_OPSET,
    batch_size: int | None = None,
) -> ExportResult:
    """Write weights, class names, preprocessing and a model card to a folder.

    Args:
        onnx: also write ``model.onnx``, checked against PyTorch.
        batch_size: fixed batch size of the graph; None means any.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder; give another --out")
    if batch_size is not None and batch_size < 1:
        raise UserError(f"--batch-size must be at least 1, not {batch_size}")
    _require_finite_weights(trained)
    preprocess, rule = make_preprocessing(trained), load_triage_rule(trained.run_folder.path)
    difference, check_text, checked_on = None, None, ""
    if onnx:
        require_onnx()
        pixels, images, checked_on = _check_images(trained)
        flip = trained.per_pixel and trained.config.evaluation.average_flipped
        graph = InferenceGraph(trained.model.cpu(), preprocess.size, trained.channels, flip=flip)
        onnx_model = trace_onnx(
            StoredImageGraph(graph, preprocess), pixels[0], opset=opset, batch_size=batch_size
        )
        accept_any_size(onnx_model)
        draft = out / ".model.onnx.draft"
        try:
            write_onnx(onnx_model, draft, _metadata(trained, preprocess))
            inputs = pixels.permute(0, 2, 3, 1)
            difference = check_onnx(
                trained.model, images, draft, inputs=inputs, batch_size=batch_size, flip=flip
            )
            draft.replace(out / "model.onnx")
        finally:
            draft.unlink(missing_ok=True)
        write_atomically(out / READER_FILE, lambda file: file.write(Path(image_files.__file__).read_bytes()))
        check_text = f"{difference.describe()}, on {checked_on}"
    weights = trained.run_folder.model_path
    with weights.open("rb") as source:
        write_atomically(out / weights.name, lambda file: shutil.copyfileobj(source, file))
    write_text_atomically(out / "preprocess.json", json.dumps(preprocess.to_dict(), indent=1) + "\n")
    write_text_atomically(out / "classes.txt", "".join(f"{name}\n" for name in trained.classes))
    text = render_model_card(trained, preprocess, onnx_check=check_text, batch_size=batch_size, rule=rule)
    write_text_atomically(out / "MODEL_CARD.md", text)
    return ExportResult(out, difference, checked_on)


def _require_finite_weights(trained: TrainedModel) -> None:
    for name, values in trained.model.state_dict().items():
        if values.is_floating_point() and not values.isfinite().all():
            raise UserError(
                f"the weights {name} in {trained.run_folder.model_path} are not finite (NaN or infinite), so "
                "the model is useless; train again, for example with a smaller train.lr"
            )


def _metadata(trained: TrainedModel, preprocess: Preprocessing) -> dict[str, object]:
    """Return what a user of the graph must know: what is done before it, and what it does itself."""
    steps = preprocess.to_dict()
    return {
        "classes": trained.classes,
        "mode": preprocess.mode,
        "range": preprocess.value_range,
        "size": preprocess.size,
        "resize": [step for step in steps["in_the_graph"] if step["step"] in ("resize", "crop")],
        **normalisation(trained.model.network),
    }


def _check_images(trained: TrainedModel) -> tuple[Tensor, Tensor, str]:
    """Return some stored images of the pool, or noise if it cannot be read, and their test view."""
    view, keys = trained.config.views.test, list(load_ledger(trained.run_folder).keys[:_CHECK_IMAGES])
    try:
        images = load_images(trained.config, keys)
        indices = [i for i, key in enumerate(images.keys) if key in set(keys)]
    except (UserError, OSError):
        indices = []
    if indices:
        pixels, checked_on = images.pixels[torch.tensor(indices)], f"{len(indices)} target images of the run"
    else:
        shape, generator = (_CHECK_IMAGES, trained.channels, *trained.size), make_generator(0, "export")
        pixels = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        checked_on = f"{_CHECK_IMAGES} images of noise (the images of the run cannot be read)"
    # The view is not random, see `make_preprocessing`.
    params = sample_view_params(view, len(pixels), *trained.size, make_generator(0, "test"))
    return pixels, apply_view(pixels, view, params), checked_on
