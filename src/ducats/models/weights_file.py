"""Local weights files of backbones: safe reading, and loading with clear errors."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import timm
import torch
from safetensors.torch import load_file
from timm.models import adapt_input_conv
from torch import Tensor, nn

from ducats.utils.errors import UserError

StateDict = dict[str, Tensor]


def read_weights(path: Path) -> StateDict:
    """Read named tensors from a .safetensors, .npz or torch file, without executing code from it.

    From a checkpoint, the entry ``state_dict`` or ``model`` is used.
    """
    if not path.is_file():
        raise UserError(f"the weights file {path} does not exist; check model.params.weights")
    try:
        stored: Any
        if path.suffix == ".safetensors":
            stored = load_file(path)
        elif path.suffix == ".npz":
            stored = _read_npz(path)
        else:
            stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"the weights file {path} cannot be read safely ({_short_error(error)}); "
            "save only the network's state_dict(), preferably as .safetensors"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(stored, Mapping) and isinstance(stored.get(key), Mapping):
            stored = stored[key]
    tensors = {}
    if isinstance(stored, Mapping):
        tensors = {str(name): value for name, value in stored.items() if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(
            f"{path} has no named tensors; save the network's state_dict(), preferably as .safetensors"
        )
    return tensors


def _read_npz(path: Path) -> StateDict:
    """Read arrays by name; NAME is ``NAME|q`` (int8) times ``NAME|s``, a scale per output channel."""
    state = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            name, _, kind = key.partition("|")
            if kind == "q":
                quantised, scale = arrays[key], arrays[f"{name}|s"]
                if scale.ndim == 1:
                    scale = scale.reshape(-1, *[1] * (quantised.ndim - 1))
                state[name] = torch.from_numpy(quantised.astype(np.float32) * scale)
            elif kind != "s":
                state[key] = torch.from_numpy(arrays[key])
    return state


def load_weights(trunk: nn.Module, state: StateDict, *, name: str, channels: int, origin: str) -> None:
    """Load weights into a backbone without classifier; raise if they do not fit completely.

    Args:
        state: weights; may include the classifier of the pretraining task.
        name: name of the backbone, for timm and for error messages.
        channels: number of image channels; weights for three colours are adapted by timm's rule.
        origin: where the weights come from, for error messages.
    """
    state = _adapt_first_conv(_strip_prefixes(state, trunk), trunk, channels)
    mismatch = _describe_mismatch(state, trunk, name)
    if mismatch and (converted := _convert_old_format(state, trunk)):
        state, mismatch = converted, _describe_mismatch(converted, trunk, name) and mismatch
    if mismatch:
        raise UserError(
            f"{origin} does not fit the backbone {name!r}: {mismatch}. If it was saved from another "
            "architecture, set that with --set model.params.backbone=NAME"
        )
    trunk.load_state_dict(state, strict=False)  # the rest belongs to the classifier


def _strip_prefixes(state: StateDict, trunk: nn.Module) -> StateDict:
    """Remove common prefixes of wrappers from all names: ``module.``, ``_orig_mod.``, ``model.``."""
    known = {name.split(".")[0] for name in trunk.state_dict()}
    while True:
        first = {name.partition(".")[0] for name in state}
        if len(first) > 1 or first <= known or not all("." in name for name in state):
            return state
        state = {name.partition(".")[2]: tensor for name, tensor in state.items()}


def _adapt_first_conv(state: StateDict, trunk: nn.Module, channels: int) -> StateDict:
    """Adapt the first convolution to other than three channels, by timm's rule."""
    cfg = trunk.pretrained_cfg
    assert isinstance(cfg, dict)
    first = cfg.get("first_conv") or ()
    adapted = dict(state)
    for name in (f"{conv}.weight" for conv in ([first] if isinstance(first, str) else first)):
        if name in state and state[name].ndim == 4 and state[name].shape[1] == 3 != channels:
            adapted[name] = adapt_input_conv(channels, state[name])
    return adapted


def _convert_old_format(state: StateDict, trunk: nn.Module) -> StateDict | None:
    """Convert weights from an older format with timm's conversion function; None if there is none.

    Some of timm's own files are in an older format. The module of such an architecture defines
    ``checkpoint_filter_fn``, which timm applies after a download.
    """
    convert = getattr(sys.modules[type(trunk).__module__], "checkpoint_filter_fn", None)
    try:
        return None if convert is None else dict(convert(dict(state), trunk))
    except Exception:  # not an older format either
        return None


def _describe_mismatch(state: StateDict, trunk: nn.Module, name: str) -> str:
    """Describe why the weights do not fit the backbone; empty if they do."""
    expected = trunk.state_dict()
    # Old files lack this counter, and ducats never reads it.
    needed = [key for key in expected if not key.endswith("num_batches_tracked")]
    missing = [key for key in needed if key not in state]
    wrong_shape = [key for key in needed if key in state and state[key].shape != expected[key].shape]
    unexpected = [key for key in state if key not in expected]
    if unexpected:
        with torch.device("meta"):  # only the names are needed
            with_classifier = timm.create_model(name, pretrained=False, num_classes=2).state_dict()
        unexpected = [key for key in unexpected if key not in with_classifier]
    problems = []
    if missing:
        problems.append(f"{len(missing)} of {len(needed)} tensors are missing, e.g. {missing[0]}")
    if wrong_shape:
        problems.append(
            f"{wrong_shape[0]} is {_shape(state[wrong_shape[0]])} instead of "
            f"{_shape(expected[wrong_shape[0]])}"
        )
    if unexpected:
        problems.append(f"{len(unexpected)} are unexpected, e.g. {unexpected[0]}")
    return ", ".join(problems)


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a scalar"


def _short_error(error: Exception) -> str:
    """Return type and first sentence of an error; torch's messages are long and coloured."""
    first = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("\n")[0].partition(". ")[0]
    return shorten(f"{type(error).__name__}: {first}", 120, placeholder=" …")
