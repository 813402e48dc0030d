"""Load the Label Studio token and keep it out of logs and messages."""

import os
import stat
from pathlib import Path

from ducats.utils.errors import UserError

TOKEN_VARIABLE = "LABEL_STUDIO_API_KEY"
TOKEN_INSTRUCTIONS = f"set {TOKEN_VARIABLE}, or save the token in a file with mode 600 and give --token-file"


class ApiToken:
    """A token that is not shown by ``repr``."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "ApiToken(…)"

    def reveal(self) -> str:
        """Return the token in plain text."""
        return self._secret

    @property
    def is_personal(self) -> bool:
        """Whether this is a personal access token (exchanged for short-lived ones), not a legacy token."""
        return self._secret.count(".") == 2 and self._secret.startswith("ey")


def load_token(token_file: Path | None) -> ApiToken:
    """Load the token from a file that only its owner can read, or from the environment."""
    if token_file is None:
        text, source = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
        if not text:
            raise UserError(f"Label Studio needs a token; {TOKEN_INSTRUCTIONS}")
    else:
        source = str(token_file)
        try:
            mode = stat.S_IMODE(token_file.stat().st_mode)
            if os.name == "posix" and mode & 0o077:
                raise UserError(
                    f"{token_file} is readable by other users (mode {mode:o}); run chmod 600 {token_file}"
                )
            text = token_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"--token-file {token_file} cannot be read ({type(error).__name__}); {TOKEN_INSTRUCTIONS}"
            ) from None
    fields = text.split()
    if len(fields) != 1 or not fields[0].isascii() or not fields[0].isprintable():
        raise UserError(f"{source} must contain a single token; copy it again from Label Studio")
    return ApiToken(fields[0])
