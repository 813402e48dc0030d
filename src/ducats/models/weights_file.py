"""A local file of a backbone's weights: read it safely, and fit it or say why it does not."""

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
    """Read tensors by name from .safetensors, .npz or what torch saved; nothing in the file is executed.

    Of a whole checkpoint, what lies under ``state_dict`` or ``model`` is taken.
    """
    if not path.is_file():
        raise UserError(f"there is no file of weights {path}: check model.knobs.weights")
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
            f"{path} is no file of weights that can be read safely ({_brief(error)}): "
            "save the network's state_dict() alone, best as .safetensors"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(stored, Mapping) and isinstance(stored.get(key), Mapping):
            stored = stored[key]
    tensors = {}
    if isinstance(stored, Mapping):
        tensors = {str(name): value for name, value in stored.items() if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(
            f"{path} holds no tensors by name: save the network's state_dict(), best as .safetensors"
        )
    return tensors


def _read_npz(path: Path) -> State:
    """Arrays by parameter name; ``NAME|q`` (int8) times ``NAME|s``, a scale per output channel, is NAME."""
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
    """Load weights into a backbone that has no classifier; refuse what does not fit in full.

    Args:
        trunk: timm's backbone, changed in place.
        state: its weights; the classifier of the pretraining task may be among them.
        name: of the backbone, for timm and for messages.
        channels: of the images; weights for three colours are adapted as timm does it.
        origin: where the weights are from, for messages.
    """
    state = _for_channels(_unwrapped(state, trunk), trunk, channels)
    wrong = _misfit(state, trunk, name)
    if wrong and (newer := _renewed(state, trunk)):
        state, wrong = newer, _misfit(newer, trunk, name) and wrong
    if wrong:
        raise UserError(
            f"{origin} does not fit the backbone {name!r}: {wrong}; if it was saved from another "
            "architecture, name that one with --set model.knobs.backbone=NAME"
        )
    trunk.load_state_dict(state, strict=False)  # what is left over is the classifier's


def _unwrapped(state: State, trunk: nn.Module) -> State:
    """Names without the wrappers' (``module.``, ``_orig_mod.``, ``model.``): one word before all of them."""
    known = {name.split(".")[0] for name in trunk.state_dict()}
    while True:
        first = {name.partition(".")[0] for name in state}
        if len(first) > 1 or first <= known or not all("." in name for name in state):
            return state
        state = {name.partition(".")[2]: tensor for name, tensor in state.items()}


def _for_channels(state: State, trunk: nn.Module, channels: int) -> State:
    """The first convolution's weights for other than three colours, by timm's own rule."""
    cfg = trunk.pretrained_cfg
    assert isinstance(cfg, dict)
    first = cfg.get("first_conv") or ()
    adapted = dict(state)
    for name in (f"{conv}.weight" for conv in ([first] if isinstance(first, str) else first)):
        if name in state and state[name].ndim == 4 and state[name].shape[1] == 3 != channels:
            adapted[name] = adapt_input_conv(channels, state[name])
    return adapted


def _renewed(state: State, trunk: nn.Module) -> State | None:
    """The weights in today's form, where timm knows the older one.

    timm's own files are not all in the form that the network has now: the module of such an architecture has
    a function of this name that its download goes through.
    """
    convert = getattr(sys.modules[type(trunk).__module__], "checkpoint_filter_fn", None)
    try:
        return None if convert is None else dict(convert(dict(state), trunk))
    except Exception:  # no older form of this architecture either
        return None


def _misfit(state: State, trunk: nn.Module, name: str) -> str:
    """What is wrong with these weights for this backbone; empty if nothing is."""
    own = trunk.state_dict()
    # Files older than this counter lack it, and no inference or training of ours reads it.
    needed = [key for key in own if not key.endswith("num_batches_tracked")]
    missing = [key for key in needed if key not in state]
    other = [key for key in needed if key in state and state[key].shape != own[key].shape]
    surplus = [key for key in state if key not in own]
    if surplus:
        with torch.device("meta"):  # its names are all that is wanted
            whole = timm.create_model(name, pretrained=False, num_classes=2).state_dict()
        surplus = [key for key in surplus if key not in whole]
    said = []
    if missing:
        said.append(f"{len(missing)} of {len(needed)} tensors are missing, e.g. {missing[0]}")
    if other:
        said.append(f"{other[0]} is {_shape(state[other[0]])} instead of {_shape(own[other[0]])}")
    if surplus:
        said.append(f"{len(surplus)} have no place, e.g. {surplus[0]}")
    return ", ".join(said)


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"


def _brief(error: Exception) -> str:
    """Kind and first sentence of an error; torch's go on for a page, and in colours."""
    first = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("\n")[0].partition(". ")[0]
    return shorten(f"{type(error).__name__}: {first}", 120, placeholder=" …")
