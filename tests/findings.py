"""Helpers for tests of the doctor."""

from collections.abc import Sequence

from ducats.config import Config
from ducats.doctor import Finding, examine


def said(findings: Sequence[Finding], severity: str) -> list[str]:
    return [finding.what for finding in findings if finding.severity == severity]


def has(sentences: Sequence[str], *words: str) -> bool:
    """Return whether one sentence contains all the words."""
    return any(all(word in sentence for word in words) for sentence in sentences)


def errors(checked: Config) -> list[str]:
    return said(examine(checked), "error")


def warned(checked: Config) -> list[str]:
    return said(examine(checked), "warning")


def noted(checked: Config) -> list[str]:
    return said(examine(checked), "note")
