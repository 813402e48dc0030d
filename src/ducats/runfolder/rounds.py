"""Names of the files and folders of rounds."""

from pathlib import Path

ROUND_FILES = "round-*.npz"


def round_name(round_number: int) -> str:
    """Return the name of a round's folder, and of its files without their suffix.

    >>> round_name(1)
    'round-01'
    """
    return f"round-{round_number:02d}"


def round_file(folder: Path, round_number: int) -> Path:
    """Return the path of a round's file in a folder with one file per round."""
    return folder / f"{round_name(round_number)}.npz"


def rounds_in(folder: Path, pattern: str = ROUND_FILES) -> list[int]:
    """Return the numbers of the rounds in a folder, ascending; names without a number alone are skipped."""
    found = (path.relative_to(folder).parts[0] for path in folder.glob(pattern))
    numbers = (name.removesuffix(".npz").removeprefix("round-") for name in found)
    return sorted(int(number) for number in numbers if number.isdecimal())
