"""What the doctor's tests ask of findings."""

from collections.abc import Sequence

from ducats.config import Config
from ducats.doctor import Finding, examine


def said(findings: Sequence[Finding], severity: str) -> list[str]:
    return [finding.what for finding in findings if finding.severity == severity]


def has(sentences: Sequence[str], *words: str) -> bool:
    """Whether one sentence holds all these words."""
    return any(all(word in sentence for word in words) for sentence in sentences)


def errors(checked: Config) -> list[str]:
    return said(examine(checked), "error")


def warned(checked: Config) -> list[str]:
    return said(examine(checked), "warning")


def noted(checked: Config) -> list[str]:
    return said(examine(checked), "note")
