"""Check configuration, data and machine before training, and report all findings at once."""

from collections.abc import Sequence

from ducats.config import Config
from ducats.doctor.data import check_data
from ducats.doctor.finding import Finding, gather
from ducats.doctor.known import check_counts
from ducats.doctor.machine import check_disk, check_machine, check_torchvision
from ducats.doctor.maps import check_maps
from ducats.doctor.plan import check_plan
from ducats.doctor.settings import check_options, check_settings, check_task
from ducats.doctor.survey import survey

__all__ = ["Finding", "examine", "verdict"]


def examine(config: Config) -> list[Finding]:
    """Return errors, warnings and notes about a run without starting it; never raise for bad input.

    Images and label maps in files (folders, manifests, benchmarks) are read one by one, and large sets of
    label maps are sampled. Any other data set is built.
    """
    broken = gather(check_torchvision())
    findings = [*broken, *gather(check_disk())]
    if not broken:
        # Without torchvision, models and the engine cannot be imported, but files can still be checked.
        findings += [*gather(check_machine(config)), *check_settings(config)]
    findings += gather(check_options(config)) + gather(check_task(config))
    found, problems = survey(config)
    findings += problems
    findings += gather(check_counts(found))
    findings += check_maps(found) if found.of_pixels else check_data(found)
    findings += check_plan(config, found)
    return list(dict.fromkeys(findings))  # the user of a misspelt name reports it as well


def verdict(findings: Sequence[Finding]) -> tuple[str, int]:
    """Return a summary and the exit code: 1 if a run would fail or its result would be invalid.

    >>> verdict([Finding("note", "all is well")])
    ('No errors and no warnings: ready to run.', 0)
    >>> verdict([Finding("error", "a"), Finding("error", "b"), Finding("warning", "c")])
    ('2 errors and 1 warning: fix the errors before training.', 1)
    """
    errors, warnings = (sum(f.severity == kind for f in findings) for kind in ("error", "warning"))
    if errors:
        return (
            f"{_count(errors, 'error')} and {_count(warnings, 'warning')}: fix the errors before training.",
            1,
        )
    if warnings:
        return (
            f"No errors and {_count(warnings, 'warning')}: ready to run, but read the warnings first.",
            0,
        )
    return "No errors and no warnings: ready to run.", 0


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
