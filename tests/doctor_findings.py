"""Helpers for tests of the doctor."""

from collections.abc import Sequence

from ducats.config import Config
from ducats.doctor import Finding, diagnose


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
