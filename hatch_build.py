"""Build hook: the address of the repository, in the metadata and in the links of the package page."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "https://github.com/ducats/ducats"
_RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")
_PICTURES = (".png", ".svg")


def absolute_links(text: str, version: str) -> str:
    """Return Markdown with its relative links as addresses of this version's files."""

    def address(match: re.Match[str]) -> str:
        view = "raw" if match[1].endswith(_PICTURES) else "blob"
        return f"]({REPOSITORY}/{view}/v{version}/{match[1]})"

    return _RELATIVE_LINK.sub(address, text)


class LinkHook(MetadataHookInterface):
    """Fill in `urls` and `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the two fields."""
        version = metadata["version"]
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, version)}
        metadata["urls"] = {
            "Homepage": REPOSITORY,
            "Documentation": f"{REPOSITORY}/tree/v{version}/docs",
            "Issues": f"{REPOSITORY}/issues",
            "Changelog": f"{REPOSITORY}/blob/v{version}/CHANGELOG.md",
        }
