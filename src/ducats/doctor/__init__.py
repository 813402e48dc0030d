"""Check configuration, data and machine before training, and report all findings at once."""

from collections.abc import Sequence
from functools import partial

from ducats.config import Config
from ducats.doctor.folder import diagnose_folder
from ducats.doctor.images import check_counts, check_images
from ducats.doctor.label_maps import check_label_maps
from ducats.doctor.machine import check_disk, check_machine, check_torchvision
from ducats.doctor.survey import survey_data
from ducats.utils.findings import Finding, collect_findings

__all__ = ["Finding", "diagnose", "diagnose_folder", "verdict"]


def diagnose(config: Config) -> list[Finding]:
    """Return errors, warnings and notes about a run without starting it; never raise for bad input.

    Images and label maps in files (folders, manifests, benchmarks) are read one by one, and large sets of
    label maps are sampled. Any other data set is built.
    """
    broken = collect_findings(check_torchvision)
    findings = [*broken, *collect_findings(check_disk)]
    if not broken:  # without torchvision, only files can be checked
        findings += _check_settings(config)
    survey = survey_data(config)
    findings += survey.findings
    findings += collect_findings(partial(check_counts, survey))
    findings += check_label_maps(survey) if survey.per_pixel else check_images(survey)
    if not broken:
        from ducats.doctor.plan import check_plan

        findings += check_plan(config, survey)
    return list(dict.fromkeys(findings))  # the user of a misspelt name reports it as well


def _check_settings(config: Config) -> list[Finding]:
    """Check the machine, and names and parameters of all components."""
    from ducats.run.factory import config_checks

    return collect_findings(partial(check_machine, config), *config_checks(config), about="the settings")


def verdict(findings: Sequence[Finding], success: str = "ready to run") -> tuple[str, int]:
    """Return a summary and the exit code: 1 if a run would fail or its result would be invalid.

    >>> verdict([Finding("note", "all is well")])
    ('No errors and no warnings: ready to run.', 0)
    >>> verdict([Finding("error", "a"), Finding("error", "b"), Finding("warning", "c")])
    ('2 errors and 1 warning: fix the errors before training.', 1)
    """
    errors, warnings = (sum(f.severity == kind for f in findings) for kind in ("error", "warning"))
    if errors:
        counts = f"{_pluralise(errors, 'error')} and {_pluralise(warnings, 'warning')}"
        return f"{counts}: fix the errors before training.", 1
    if warnings:
        counts = f"No errors and {_pluralise(warnings, 'warning')}"
        return f"{counts}: {success}, but read the warnings first.", 0
    return f"No errors and no warnings: {success}.", 0


def _pluralise(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
