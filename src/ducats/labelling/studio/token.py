"""Load the Label Studio token and keep it out of logs and messages."""

import os
import stat
from pathlib import Path

from ducats.errors import UserError

VARIABLE = "LABEL_STUDIO_API_KEY"
HOW = f"set {VARIABLE}, or save the token in a file with mode 600 and give --token-file"


class Token:
    """A token that is not shown by ``repr``."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "Token(…)"

    def reveal(self) -> str:
        """Return the token in plain text."""
        return self._secret

    @property
    def personal(self) -> bool:
        """Whether this is a personal access token (exchanged for short-lived ones), not a legacy token."""
        return self._secret.count(".") == 2 and self._secret.startswith("ey")


def find_token(file: Path | None) -> Token:
    """Load the token from a file that only its owner can read, or from the environment."""
    if file is None:
        text, place = os.environ.get(VARIABLE, ""), VARIABLE
        if not text:
            raise UserError(f"Label Studio needs a token; {HOW}")
    else:
        place = str(file)
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
            if os.name == "posix" and mode & 0o077:
                raise UserError(f"{file} is readable by other users (mode {mode:o}); run chmod 600 {file}")
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--token-file {file} cannot be read ({type(error).__name__}); {HOW}") from None
    words = text.split()
    if len(words) != 1 or not words[0].isascii() or not words[0].isprintable():
        raise UserError(f"{place} must contain a single token; copy it again from Label Studio")
    return Token(words[0])
