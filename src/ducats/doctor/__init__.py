"""Check configuration, data and machine before training, and report all findings at once."""

from collections.abc import Sequence

from ducats.config import Config
from ducats.doctor.benchmark_counts import check_counts
from ducats.doctor.finding import Finding, collect_findings
from ducats.doctor.images import check_images
from ducats.doctor.label_maps import check_label_maps
from ducats.doctor.machine import check_disk, check_machine, check_torchvision
from ducats.doctor.plan import check_plan
from ducats.doctor.settings import check_options, check_settings, check_task
from ducats.doctor.survey import survey_data

__all__ = ["Finding", "diagnose", "verdict"]


def diagnose(config: Config) -> list[Finding]:
    """Return errors, warnings and notes about a run without starting it; never raise for bad input.

    Images and label maps in files (folders, manifests, benchmarks) are read one by one, and large sets of
    label maps are sampled. Any other data set is built.
    """
    broken = collect_findings(check_torchvision())
    findings = [*broken, *collect_findings(check_disk())]
    if not broken:
        # Without torchvision, models and the engine cannot be imported, but files can still be checked.
        findings += [*collect_findings(check_machine(config)), *check_settings(config)]
    findings += collect_findings(check_options(config)) + collect_findings(check_task(config))
    data_survey, problems = survey_data(config)
    findings += problems
    findings += collect_findings(check_counts(data_survey))
    findings += check_label_maps(data_survey) if data_survey.per_pixel else check_images(data_survey)
    findings += check_plan(config, data_survey)
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
        counts = f"{_pluralise(errors, 'error')} and {_pluralise(warnings, 'warning')}"
        return f"{counts}: fix the errors before training.", 1
    if warnings:
        counts = f"No errors and {_pluralise(warnings, 'warning')}"
        return f"{counts}: ready to run, but read the warnings first.", 0
    return "No errors and no warnings: ready to run.", 0


def _pluralise(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
