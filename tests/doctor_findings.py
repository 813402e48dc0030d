"""Helpers for tests of the doctor."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from ducats.config import Config
from ducats.doctor import Finding, diagnose
from ducats.run.checks import check_run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError


def messages(findings: Sequence[Finding], severity: str) -> list[str]:
    return [finding.message for finding in findings if finding.severity == severity]


def contains_words(messages: Sequence[str], *words: str) -> bool:
    """Return whether one message contains all the words."""
    return any(all(word in message for word in words) for message in messages)


def error_messages(config: Config) -> list[str]:
    return messages(diagnose(config), "error")


def warning_messages(config: Config) -> list[str]:
    return messages(diagnose(config), "warning")


def note_messages(config: Config) -> list[str]:
    return messages(diagnose(config), "note")


def run_error(config: Config, folder: Path) -> str:
    """Return the error with which a run stops before training."""
    with pytest.raises(UserError) as caught:
        check_run(*build_run(config, RunFolder(folder)))
    return str(caught.value)


def write_noise(path: Path, side: int = 12) -> None:
    """Write a unique image that depends only on its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = random.Random("/".join(path.parts[-3:])).randbytes(side**2)
    Image.frombytes("L", (side, side), pixels).save(path)
