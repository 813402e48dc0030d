"""What to do after a run or a comparison: the first steps on a page, with commands to copy."""

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ducats.report.headline import TIE_TOLERANCE
from ducats.report.method_results import MethodRow, counted_runs
from ducats.report.provenance import first_unanswered_round, label_png_folder, progress_message
from ducats.report.run_kinds import CLASSIFICATION
from ducats.report.run_reader import Run
from ducats.report.run_section.class_results import ClassResult, ClassResults, read_class_results
from ducats.report.run_section.extrapolation import GainForecast, forecast_gain
from ducats.report.run_section.gain import selects_at_random
from ducats.report.run_section.verdict import Verdict, format_label_count, format_signed_points
from ducats.report.table import Table
from ducats.utils.findings import pluralise

MAX_STEPS = 4  # steps that fit on the first screen
MIN_WORTHWHILE_GAIN = 0.005  # a batch that adds less than half a point is not recommended
GOOD_CLASS_SCORE = 0.95  # a weakest class with this score needs no attention
RECOMMENDED_SEEDS = 3
TEST_SET_ADVICE = "draw target images at random, label them, and never use them for training"


@dataclass(frozen=True)
class NextStep:
    """One step: what to do and why, and the command for it, if any."""

    action: str  # a few words
    reason: str  # one sentence
    command: str = ""
    anchor: str = ""  # id of the part of the page with details


def steps_after_run(
    run: Run, verdict: Verdict, class_results: ClassResults | None, classes_anchor: str
) -> tuple[NextStep, ...]:
    """Return the steps after a single run, the most important first."""
    has_labels = bool(run.stages) and bool(run.stages[-1]["labels"])
    steps = [_finish_step(run), _test_set_step(run), _labelling_step(run)]
    steps.append(_class_step(class_results, classes_anchor))
    if (
        has_labels
        and run.result is not None
        and not verdict.compared_with_random
        and not selects_at_random(run)
    ):
        steps.append(
            NextStep(
                "Compare with random labels.",
                "Only a run that selects at random shows whether the selection was worth it. It takes "
                f"{'at most ' if _asks_people(run) else ''}as many labels; then report both runs.",
                _run_command(run, "--set query.name=random"),
            )
        )
    return _first_steps([*steps, _model_step(run)])


def steps_after_comparison(best: Run, runs: Sequence[Run], rows: Sequence[MethodRow]) -> tuple[NextStep, ...]:
    """Return the steps after runs on one task; ``best`` is a run of the best method."""
    unfinished = next((run for run in runs if not run.finished), None)
    steps = [
        _finish_step(unfinished) if unfinished else None,
        _test_set_step(best),
        _seed_step(best, runs, rows),
        _labelling_step(best),
        _class_step(read_class_results(best) if best.result is not None else None),
    ]
    return _first_steps([*steps, _model_step(best)])


def steps_after_sweep(example: Run, missing: Table) -> tuple[NextStep, ...]:
    """Return the steps after a sweep over several tasks; ``example`` is a run of the best method."""
    n_missing = len(missing.rows)
    steps = [
        NextStep(
            "Finish the sweep.",
            f"{n_missing} {'run is' if n_missing == 1 else 'runs are'} not in the tables, for the reasons "
            "given with them. Run the same command again.",
        )
        if n_missing
        else None,
        NextStep(
            "Look at one run.",
            "Its own page shows the selected images and the weakest classes.",
            f"ducats report {_run_path(example)} --out run.html",
        ),
        _model_step(example),
    ]
    return _first_steps(steps)


def _first_steps(steps: Sequence[NextStep | None]) -> tuple[NextStep, ...]:
    """Return the first steps; the last one is always kept."""
    found = [step for step in steps if step is not None]
    return (*found[: MAX_STEPS - 1], *found[MAX_STEPS - 1 :][-1:])


def _finish_step(run: Run) -> NextStep | None:
    if run.finished:
        return None
    if first_unanswered_round(run):
        command = "" if label_png_folder(run) else f"ducats label {_run_path(run)}"
        return NextStep("Answer the open questions.", progress_message(run), command)
    return NextStep("Finish the run.", progress_message(run))


def _test_set_step(run: Run) -> NextStep | None:
    evaluated_on = run.result.get("evaluated_on") if run.result is not None else None
    if run.result is not None and evaluated_on not in ("target", "unlabelled"):
        return None
    if not run.finished or run.audits:
        return None
    why = "Nothing was measured" if run.result is None else "The score is not from images set aside for it"
    return NextStep(
        "Set aside a test set.",
        f"{why}: {TEST_SET_ADVICE}.",
        f"ducats evaluate {_run_path(run)} --data TEST" if _has_model(run) else "",
    )


def _labelling_step(run: Run) -> NextStep | None:
    """Recommend more labels, or to stop, if the gain of the next batch can be estimated."""
    forecast = forecast_gain(run)
    if forecast.reason_missing or not run.finished:
        return None
    labels = format_label_count(forecast.n_labels, run.kind)
    if forecast.high < MIN_WORTHWHILE_GAIN:
        most = format_signed_points(max(forecast.high, 0.0))
        return NextStep("Stop labelling.", f"The next {labels} would add at most {most} points.")
    gain = f"{format_signed_points(forecast.low)} to {format_signed_points(forecast.high)} points"
    if forecast.estimate < MIN_WORTHWHILE_GAIN:
        return NextStep("Think before labelling more.", f"The next {labels} would add {gain}, likely little.")
    is_sure = forecast.low >= TIE_TOLERANCE
    return NextStep(
        "Label more." if is_sure else "Perhaps label more.",
        f"The next {labels} would likely add {gain}{'' if is_sure else ', possibly nothing'}.",
        _labelling_command(run, forecast),
    )


def _labelling_command(run: Run, forecast: GainForecast) -> str:
    if _asks_people(run) and run.kind == CLASSIFICATION and _has_model(run):
        return (
            f"ducats score {_run_path(run)} TARGET --budget {forecast.n_labels} --exclude-labelled --out next"
        )
    acquisition = run.config.get("acquisition")
    budget = str(acquisition.get("budget", "")) if isinstance(acquisition, Mapping) else ""
    number = re.match(r"[0-9.]+", budget)
    if number is None:
        return ""
    labels = run.stages[-1]["labels"]
    larger = float(number[0]) * (labels + forecast.n_labels) / labels
    unit = budget[number.end() :].strip()
    if unit in ("%", "min", "h"):
        larger = min(larger, 100.0) if unit == "%" else larger
        amount = np.format_float_positional(larger, precision=4, fractional=False, trim="-")
    else:
        amount = str(math.ceil(larger))  # counts are whole numbers
    return _run_command(run, f"--budget {amount}{unit}")


def _class_step(class_results: ClassResults | None, anchor: str = "") -> NextStep | None:
    """Name the class with the lowest score."""
    found: list[tuple[float, ClassResult]] = []
    for row in (*class_results.shown, *class_results.collapsed) if class_results else ():
        if row.after is not None:
            found.append((row.after, row))
    if class_results is None or not found:
        return None
    score, weakest = min(found, key=lambda pair: pair[0])
    if score >= GOOD_CLASS_SCORE:
        return None
    reason = (
        f"Its {class_results.metric_name.replace('Accuracy', 'accuracy')} is {100 * score:.0f}%, the lowest"
    )
    if weakest.confused_with:
        reason += f"; it is most often taken for {weakest.confused_with}"
    return NextStep(
        f"Look at class {weakest.name}.", f"{reason}. Check its labels, add images of it.", anchor=anchor
    )


def _seed_step(best: Run, runs: Sequence[Run], rows: Sequence[MethodRow]) -> NextStep | None:
    """Recommend the next seed of the method with the fewest; the best one if there are several."""
    if len(rows) < 2:
        return None
    row = min(rows, key=lambda row: (len(row.seeds), row.method != best.method))
    if len(row.seeds) >= RECOMMENDED_SEEDS:
        return None
    own_runs = [run for run in runs if run.method == row.method and run.kind == row.kind]
    seed = 1 + max(run.seed for run in own_runs)
    return NextStep(
        "Run more seeds.",
        f"{row.method} has {pluralise(len(row.seeds), 'seed')}; with fewer than {RECOMMENDED_SEEDS}, "
        "differences may be due to chance.",
        _run_command(counted_runs(own_runs, row.method)[0], f"--seed {seed}"),
    )


def _model_step(run: Run) -> NextStep | None:
    if not run.finished:
        return None
    if not _has_model(run):
        return NextStep(
            "Make the model again.",
            f"{run.files.model_path.name} was deleted. Run the same `ducats run` command again; the labels "
            "are kept.",
        )
    return NextStep(
        "Use the model.",
        "Export its weights, classes and preprocessing with a model card.",
        f"ducats export {_run_path(run)}",
    )


def _run_command(run: Run, options: str) -> str:
    """Return the command for a run like this one; annotators are not asked again for what they answered."""
    config_path = shlex.quote(str(_shown_path(run.folder) / run.files.config_path.name))
    answers = f" --answers {_run_path(run)}" if _asks_people(run) else ""
    return f"ducats run -c {config_path} {options}{answers}"


def _has_model(run: Run) -> bool:
    """Whether the weights of a finished run are there; some delete them."""
    return run.files.finished


def _asks_people(run: Run) -> bool:
    return run.files.questions_path.is_dir()


def _run_path(run: Run) -> str:
    return shlex.quote(str(_shown_path(run.folder)))


def _shown_path(folder: Path) -> Path:
    """Return a folder as given if it is relative; otherwise its name only, so that a page can be shared."""
    return Path(folder.resolve().name) if folder.is_absolute() or os.pardir in folder.parts else folder
