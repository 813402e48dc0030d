"""Call commands in this process, and write and read their files."""

import csv
from collections.abc import Iterable
from pathlib import Path

import pytest
from PIL import Image
from torch import Tensor

from ducats.cli import main

Capture = pytest.CaptureFixture[str]


def ducats(*arguments: object) -> int:
    """Run a command and return its exit code."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


def set_options(*settings: str) -> tuple[str, ...]:
    """Return the options for ``key=value`` settings."""
    return tuple(part for setting in settings for part in ("--set", setting))


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_images(
    folder: Path, pixels: Iterable[Tensor], subfolders: Iterable[str], size: tuple[int, int] | None = None
) -> None:
    """Write numbered images ``(3, H, W)`` into subfolders, e.g. of their classes."""
    for number, (image, subfolder) in enumerate(zip(pixels, subfolders, strict=True)):
        path = folder / subfolder / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        (picture if size is None else picture.resize(size)).save(path)


def error_of(capsys: Capture, *command: object) -> str:
    """Run a command with bad input and return its message, in one line."""
    capsys.readouterr()
    assert ducats(*command) == 2
    return " ".join(capsys.readouterr().err.split())


def output_of(capsys: Capture, *command: object) -> str:
    """Run a command that succeeds and return what it prints."""
    capsys.readouterr()
    assert ducats(*command) == 0
    return capsys.readouterr().out
