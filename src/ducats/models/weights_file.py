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

from ducats.errors import UserError

State = dict[str, Tensor]


def read(path: Path) -> State:
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
            f"the weights file {path} cannot be read safely ({_brief(error)}); "
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


def _read_npz(path: Path) -> State:
    """Read arrays by name; NAME is ``NAME|q`` (int8) times ``NAME|s``, a scale per output channel."""
    state = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            name, _, kind = key.partition("|")
            if kind == "q":
                whole, scale = arrays[key], arrays[f"{name}|s"]
                if scale.ndim == 1:
                    scale = scale.reshape(-1, *[1] * (whole.ndim - 1))
                state[name] = torch.from_numpy(whole.astype(np.float32) * scale)
            elif kind != "s":
                state[key] = torch.from_numpy(arrays[key])
    return state


def fit(trunk: nn.Module, state: State, *, name: str, channels: int, origin: str) -> None:
    """Load weights into a backbone without classifier; raise if they do not fit completely.

    Args:
        trunk: timm backbone, modified in place.
        state: weights; may include the classifier of the pretraining task.
        name: name of the backbone, for timm and for error messages.
        channels: number of image channels; weights for three colours are adapted by timm's rule.
        origin: where the weights come from, for error messages.
    """
    state = _for_channels(_unwrapped(state, trunk), trunk, channels)
    wrong = _misfit(state, trunk, name)
    if wrong and (newer := _renewed(state, trunk)):
        state, wrong = newer, _misfit(newer, trunk, name) and wrong
    if wrong:
        raise UserError(
            f"{origin} does not fit the backbone {name!r}: {wrong}. If it was saved from another "
            "architecture, set that with --set model.params.backbone=NAME"
        )
    trunk.load_state_dict(state, strict=False)  # the rest belongs to the classifier


def _unwrapped(state: State, trunk: nn.Module) -> State:
    """Remove common prefixes of wrappers from all names: ``module.``, ``_orig_mod.``, ``model.``."""
    known = {name.split(".")[0] for name in trunk.state_dict()}
    while True:
        first = {name.partition(".")[0] for name in state}
        if len(first) > 1 or first <= known or not all("." in name for name in state):
            return state
        state = {name.partition(".")[2]: tensor for name, tensor in state.items()}


def _for_channels(state: State, trunk: nn.Module, channels: int) -> State:
    """Adapt the first convolution to other than three channels, by timm's rule."""
    cfg = trunk.pretrained_cfg
    assert isinstance(cfg, dict)
    first = cfg.get("first_conv") or ()
    adapted = dict(state)
    for name in (f"{conv}.weight" for conv in ([first] if isinstance(first, str) else first)):
        if name in state and state[name].ndim == 4 and state[name].shape[1] == 3 != channels:
            adapted[name] = adapt_input_conv(channels, state[name])
    return adapted


def _renewed(state: State, trunk: nn.Module) -> State | None:
    """Convert weights from an older format with timm's conversion function; None if there is none.

    Some of timm's own files are in an older format. The module of such an architecture defines
    ``checkpoint_filter_fn``, which timm applies after a download.
    """
    convert = getattr(sys.modules[type(trunk).__module__], "checkpoint_filter_fn", None)
    try:
        return None if convert is None else dict(convert(dict(state), trunk))
    except Exception:  # not an older format either
        return None


def _misfit(state: State, trunk: nn.Module, name: str) -> str:
    """Describe why the weights do not fit the backbone; empty if they do."""
    own = trunk.state_dict()
    # Old files lack this counter, and ducats never reads it.
    needed = [key for key in own if not key.endswith("num_batches_tracked")]
    missing = [key for key in needed if key not in state]
    other = [key for key in needed if key in state and state[key].shape != own[key].shape]
    surplus = [key for key in state if key not in own]
    if surplus:
        with torch.device("meta"):  # only the names are needed
            whole = timm.create_model(name, pretrained=False, num_classes=2).state_dict()
        surplus = [key for key in surplus if key not in whole]
    said = []
    if missing:
        said.append(f"{len(missing)} of {len(needed)} tensors are missing, e.g. {missing[0]}")
    if other:
        said.append(f"{other[0]} is {_shape(state[other[0]])} instead of {_shape(own[other[0]])}")
    if surplus:
        said.append(f"{len(surplus)} are unexpected, e.g. {surplus[0]}")
    return ", ".join(said)


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a scalar"


def _brief(error: Exception) -> str:
    """Return type and first sentence of an error; torch's messages are long and coloured."""
    first = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("\n")[0].partition(". ")[0]
    return shorten(f"{type(error).__name__}: {first}", 120, placeholder=" …")
