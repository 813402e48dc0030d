"""The doctor: everything that can be known to be wrong before training starts, all of it at once."""

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
    """Find what is wrong, doubtful or worth knowing about a run, without starting it; raises for no input.

    Images and label maps in files (folders, manifests, benchmarks) are read one by one and never held
    together, and of many label maps some; any other data set is built.
    """
    broken = gather(check_torchvision())
    findings = [*broken, *gather(check_disk())]
    if not broken:
        # Without torchvision, neither models nor the engine can be imported; files can still be looked at.
        findings += [*gather(check_machine(config)), *check_settings(config)]
    findings += gather(check_options(config)) + gather(check_task(config))
    found, problems = survey(config)
    findings += problems
    findings += gather(check_counts(found))
    findings += check_maps(found) if found.of_pixels else check_data(found)
    findings += check_plan(config, found)
    return list(dict.fromkeys(findings))  # a slip in a name is noticed by its user, too


def verdict(findings: Sequence[Finding]) -> tuple[str, int]:
    """The closing sentence, and the exit code: 1 if a run would fail or its result could not be trusted.

    >>> verdict([Finding("note", "all is well")])
    ('No errors and no warnings: ready to run.', 0)
    >>> verdict([Finding("error", "a"), Finding("error", "b"), Finding("warning", "c")])
    ('2 errors and 1 warning: mend the errors before training.', 1)
    """
    errors, warnings = (sum(f.severity == kind for f in findings) for kind in ("error", "warning"))
    if errors:
        return (
            f"{_count(errors, 'error')} and {_count(warnings, 'warning')}: mend the errors before training.",
            1,
        )
    if warnings:
        return (
            f"No errors and {_count(warnings, 'warning')}: a run will start, but read the warnings first.",
            0,
        )
    return "No errors and no warnings: ready to run.", 0


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
