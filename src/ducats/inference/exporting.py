"""Export a finished model for use without this library."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ducats.data.views import apply_view
from ducats.errors import UserError
from ducats.factory import make_task, make_views
from ducats.files import write_atomically, write_text_atomically
from ducats.inference.card import card
from ducats.inference.onnx import OPSET, Difference, check_onnx, export_onnx, require_onnx
from ducats.inference.plain import Graph
from ducats.inference.preprocess import preprocess_of
from ducats.inference.rule import load_rule
from ducats.inference.trained import Trained
from ducats.picks import images_of
from ducats.randomness import make_generator
from ducats.training.forward import sample_aug_params

COMPARED = 8  # images that the graph is checked on


class Exported(NamedTuple):
    """Output folder of an export, and the result of the check of the ONNX graph."""

    folder: Path
    difference: Difference | None  # None if no graph was exported
    checked_on: str


def export(
    trained: Trained, out: Path, *, onnx: bool = False, opset: int = OPSET, batch: int | None = None
) -> Exported:
    """Write weights, class names, preprocessing and a model card to a folder.

    Args:
        onnx: also write ``model.onnx``, checked against PyTorch.
        opset: ONNX opset version.
        batch: fixed batch size of the graph; None means any.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder; give another --out")
    if batch is not None and batch < 1:
        raise UserError(f"--batch-size must be at least 1, not {batch}")
    preprocess, rule = preprocess_of(trained), load_rule(trained.home.path)
    difference, checked, where = None, None, ""
    if onnx:
        require_onnx()
        images, where = _images(trained)
        flip = trained.of_pixels and make_task(trained.config).average_flipped
        graph = Graph(trained.model.cpu(), preprocess.size, trained.channels, flip=flip)
        draft = out / ".model.onnx.draft"
        try:
            export_onnx(graph, images, draft, opset=opset, batch=batch)
            difference = check_onnx(trained.model, images, draft, batch=batch, flip=flip)
            draft.replace(out / "model.onnx")
        finally:
            draft.unlink(missing_ok=True)
        checked = f"{difference.in_words()}, on {where}"
    weights = trained.home.path / "model.safetensors"
    with weights.open("rb") as source:
        write_atomically(out / weights.name, lambda file: shutil.copyfileobj(source, file))
    write_text_atomically(out / "preprocess.json", json.dumps(preprocess.as_json(), indent=1) + "\n")
    write_text_atomically(out / "classes.txt", "".join(f"{name}\n" for name in trained.classes))
    text = card(trained, preprocess, onnx=checked, batch=batch, rule=rule)
    write_text_atomically(out / "MODEL_CARD.md", text)
    return Exported(out, difference, where)


def _images(trained: Trained) -> tuple[Tensor, str]:
    """Return some preprocessed pool images, or noise if the pool cannot be read."""
    view, keys = make_views(trained.config).test, list(trained.home.load_ledger().keys[:COMPARED])
    try:
        found = images_of(trained.config, keys)
        places = [place for place, key in enumerate(found.keys) if key in set(keys)]
    except (UserError, OSError):
        places = []
    if not places:
        size = view.output_size(*trained.size)
        generator = make_generator(0, "export")
        noise = torch.rand(COMPARED, trained.channels, *size, generator=generator)
        return noise, f"{COMPARED} images of noise (the images of the run cannot be read)"
    index = torch.tensor(places)
    shown = apply_view(
        found.pixels[index], view, sample_aug_params(found, view, make_generator(0, "test"))[index]
    )
    return shown, f"{len(places)} target images of the run"
