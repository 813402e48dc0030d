"""Helpers for tests of the doctor."""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from PIL import Image

from ducats.config import Config, load_config
from ducats.doctor import diagnose
from ducats.objectives import ObjectiveSpec, softmax
from ducats.run.checks import check_run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

SAMPLING_OBJECTIVE = ObjectiveSpec(softmax, cuda_graph_safe=False)

# A setting, in which @ stands for the folder of the data, or an edit of this folder.
Change = str | Callable[[Path], object]


def changed_config(root: Path, files: Sequence[str], changes: Sequence[Change]) -> Config:
    """Edit the data and return a config with the settings."""
    settings = []
    for change in changes:
        if isinstance(change, str):
            settings.append(change.replace("@", f"{root}/"))
        else:
            change(root)
    return load_config(files, settings)


def assert_findings(config: Config, *expected: str) -> None:
    """Check that there are exactly these errors and warnings, and at least these notes.

    Args:
        expected: severity and parts of the message: "error: 1 of 6 images … cat/1.png".
    """
    found = [(finding.severity, finding.message) for finding in diagnose(config)]
    for text in expected:
        severity, _, words = text.partition(": ")
        matches = [message for kind, message in found if kind == severity]
        assert any(all(word in message for word in words.split(" … ")) for message in matches), text
    serious = [finding for finding in found if finding[0] != "note"]
    assert len(serious) == sum(not text.startswith("note: ") for text in expected), serious


def check_case(make_config: Callable[..., Config], case: Sequence[Change]) -> None:
    """Apply the changes of a case and check its findings, which are listed before the changes."""
    expected = [part for part in case if isinstance(part, str) and re.match("(error|warning|note): ", part)]
    assert_findings(make_config(*case[len(expected) :]), *expected)


def assert_run_raises_first_error(config: Config, folder: Path, words: str) -> list[str]:
    """Check that a run stops before training with the doctor's first error; return all its errors."""
    errors = [finding.message for finding in diagnose(config) if finding.severity == "error"]
    assert words in errors[0]
    with pytest.raises(UserError) as caught:
        check_run(*build_run(config, RunFolder(folder)))
    assert str(caught.value) == errors[0]
    return errors


def write_noise(path: Path, side: int = 12) -> None:
    """Write a unique image that depends only on its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = random.Random("/".join(path.parts[-3:])).randbytes(side**2)
    Image.frombytes("L", (side, side), pixels).save(path)


def write_bytes(name: str, content: bytes = b"") -> Change:
    """Return an edit that writes a file, empty unless told otherwise."""
    return lambda root: (root / name).write_bytes(content)
