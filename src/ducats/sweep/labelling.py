"""Run a sweep whose labels come from people: its cost, and one set of questions for all runs."""

import json
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ducats.acquisition.budget import parse_time_budget, split_budget, split_pixels
from ducats.annotation.shared_answers import AnswerBook
from ducats.config import Config, query_epochs
from ducats.data.registry import resolve_dataset
from ducats.doctor.plan import has_human_oracle, image_areas, pool_size
from ducats.doctor.survey import DataSurvey, survey_data
from ducats.runfolder.question_names import README
from ducats.sweep.jobs import SweepBackend
from ducats.sweep.progress import print_line
from ducats.sweep.questions import LabelCount, OpenRound, SweepQuestions, count_labels, find_open_rounds
from ducats.sweep.runner import SweepOutcome, run_sweep
from ducats.sweep.runs import SweepRun
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise


@dataclass(frozen=True)
class RunCost:
    """What people have to label for one run."""

    rounds: int
    labels: int  # 0 with a time budget
    seconds: float | None  # time budget
    seconds_per_label: float  # assumed
    pool: int  # number of different labels that can be asked for
    data: str  # runs with the same data share it


def labelling_costs(runs: Sequence[SweepRun]) -> dict[str, RunCost]:
    """Return the cost of each run whose labels people give, by name; empty if there is ground truth."""
    surveys: dict[str, DataSurvey] = {}
    costs = {}
    for run in runs:
        config = run.config
        if not query_epochs(config) or not _may_ask_people(config):
            continue
        data = json.dumps(
            config.model_dump(mode="json", include={"data", "task", "evaluation"}), sort_keys=True
        )
        if data not in surveys:
            surveys[data] = survey_data(config)
        if has_human_oracle(config, surveys[data]):
            costs[run.name] = _run_cost(config, surveys[data], data)
    return costs


def _may_ask_people(config: Config) -> bool:
    """Return whether people may have to label, judged without a look at the data."""
    if config.oracle.name != "auto":
        return config.oracle.name == "human"
    spec = resolve_dataset(config.data.name)
    is_own = ":" in config.data.name or spec.file_layout is not None
    return is_own or "ground_truth" in spec.parameters


def _run_cost(config: Config, survey: DataSurvey, data: str) -> RunCost:
    acquisition, rounds = config.acquisition, len(query_epochs(config))
    seconds_per_label, n_images = acquisition.seconds_per_label, pool_size(config, survey)
    time_budget = parse_time_budget(acquisition.budget, seconds_per_label, acquisition.growth)
    selects_pixels = survey.per_pixel and not config.task.labels_whole_images
    areas = image_areas(config, survey)[:n_images] if selects_pixels and n_images else []
    pool = sum(areas) if selects_pixels else n_images
    if time_budget is not None or not pool:  # without images, the run reports the reason
        seconds = time_budget.seconds if time_budget is not None else None
        return RunCost(rounds, 0, seconds, seconds_per_label, pool, data)
    if selects_pixels:
        labels = sum(map(sum, split_pixels(acquisition.budget, areas, rounds, acquisition.rounding)))
    else:
        budget = acquisition.budget
        labels = sum(split_budget(budget, n_images, rounds, acquisition.rounding, acquisition.growth))
    return RunCost(rounds, labels, None, seconds_per_label, pool, data)


def describe_cost(costs: Mapping[str, RunCost], count: LabelCount) -> str:
    """Describe what people have to label for a sweep, before it starts or resumes.

    Args:
        count: what they have labelled so far.
    """
    all_costs = list(costs.values())
    timed = [one.seconds for one in all_costs if one.seconds is not None]
    labels = sum(one.labels for one in all_costs)
    parts = []
    if timed:
        parts.append(
            f"{pluralise(len(timed), 'run')} with time budgets of {sum(timed) / 60:.4g} minutes in total"
        )
    if labels:
        plans = {(one.rounds, one.labels) for one in all_costs if one.labels}
        rounds, per_run = min(plans)
        n_runs = len(all_costs) - len(timed)
        each = f", {per_run} in {pluralise(rounds, 'round')} each" if len(plans) == 1 and n_runs > 1 else ""
        pools = {one.data: one.pool for one in all_costs}
        wanted = {data: sum(one.labels for one in all_costs if one.data == data) for data in pools}
        distinct = sum(min(number, pools[data]) for data, number in wanted.items())
        assumed = sum(one.labels * one.seconds_per_label for one in all_costs) / labels
        pace = f"the measured {count.seconds:.1f} s" if count.seconds else f"an assumed {assumed:g} s"
        once = f"; a label that several runs ask for is given once, so at most {distinct}"
        minutes = distinct * (count.seconds or assumed) / 60
        parts.append(
            f"{pluralise(n_runs, 'run')} with {pluralise(labels, 'label')}{each}{once * (n_runs > 1)}, "
            f"{minutes:.1f} minutes at {pace} each"
        )
    given = f"; {count.given} given so far" if count.given else ""
    return f"people label the target: {'; '.join(parts) or 'see `ducats doctor` for the number'}{given}"


def run_sweep_with_people(
    runs: Sequence[SweepRun],
    out: Path,
    backend: SweepBackend,
    console: Console,
    *,
    people: Collection[str],
    folders: Sequence[Path],
    time_limit: float | None = None,
    poll_seconds: float | None = None,
) -> SweepOutcome:
    """Execute a sweep in which people answer; the runs share their answers.

    Runs that still wait for answers are not started. When no run can continue, the questions of all runs are
    written to the folder of the sweep.

    Args:
        people: names of the runs whose labels people give.
        folders: of the answer book: that of the sweep, and others with earlier answers.
        time_limit: see ``run_sweep``; without the time spent waiting for people.
        poll_seconds: keep waiting for answers and check for them at this interval; None: return.
    """
    questions, book = SweepQuestions(out), AnswerBook(folders)
    asking = [run for run in runs if run.name in people and run.state(out) != "done"]
    resumed: set[tuple[str, int]] = set()
    problems: list[str] = []
    while True:
        problems = _import_answers(
            questions, problems, console, must_be_valid=bool(asking) and poll_seconds is None
        )
        waiting = [one for one in find_open_rounds(asking, out, book) if not one.can_resume]
        started = time.monotonic()
        outcome = run_sweep(
            runs,
            out,
            backend,
            console,
            time_limit=time_limit,
            shared_answers=dict.fromkeys(people, folders),
            waiting=[one.run.name for one in waiting],
        )
        if time_limit is not None:
            time_limit = max(0.0, time_limit - (time.monotonic() - started))
        if not outcome.waiting or outcome.unfinished:
            break
        found = find_open_rounds([run for run in asking if run.name in outcome.waiting], out, book)
        answered = {(one.run.name, one.number) for one in found if one.can_resume}
        if answered - resumed:  # by answers to another run; each round once, to end
            resumed |= answered
            continue
        message = describe_waiting(found, questions.ask(found, book), questions, out)
        if poll_seconds is None or outcome.failed:
            print_line(console, message, "yellow")
            break
        hint = f"--wait: checking every {poll_seconds:g} s; Ctrl-C stops waiting"
        print_line(console, f"{message} ({hint})", "yellow")
        problems = _wait_for_answers(questions, asking, book, problems, poll_seconds, console)
    if people and (count := count_labels(runs, out)).labels:
        print_line(console, f"{count}")
    return outcome


def _import_answers(
    questions: SweepQuestions, known: Sequence[str], console: Console, *, must_be_valid: bool = False
) -> list[str]:
    """Import the answers in files; print the problems that are not known, and return all.

    Args:
        must_be_valid: raise if there is a problem. Otherwise, it may be corrected while the sweep waits.
    """
    problems = questions.import_answers()
    if problems and must_be_valid:
        raise UserError("\n".join(problems))
    if new := [problem for problem in problems if problem not in known]:
        print_line(console, "\n".join(new), "red")
    return problems


def _wait_for_answers(
    questions: SweepQuestions,
    runs: Sequence[SweepRun],
    book: AnswerBook,
    problems: list[str],
    poll_seconds: float,
    console: Console,
) -> list[str]:
    """Wait until a run can continue; return the problems that are left."""
    while True:
        time.sleep(poll_seconds)
        problems = _import_answers(questions, problems, console)
        if any(one.can_resume for one in find_open_rounds(runs, questions.out, book)):
            return problems


def describe_waiting(
    rounds: Sequence[OpenRound], group: Sequence[OpenRound], questions: SweepQuestions, out: Path
) -> str:
    """Return how many labels the runs wait for, and how to give them."""
    lines = []
    if group:
        asked = sum(len(one.questions or one.mask_rows) for one in group)
        unit = "image" if group[0].rules is None else "label"
        needed = questions.n_open(group)
        shared = f" (asked {asked} times)" if asked > needed else ""
        verb = "waits" if len(group) == 1 else "wait"
        lines.append(
            f"{pluralise(len(group), 'run')} {verb} for {pluralise(needed, unit)}{shared}. "
            f"{questions.instructions()}"
        )
    for one in rounds:
        if one not in group:
            how = f"`ducats label {shlex.quote(str(one.run.folder(out)))}`"
            how = how if one.rules is not None else f"see {one.folder / README}"
            answers = pluralise(len(one.questions or one.mask_rows), "answer")
            lines.append(f"{one.run.name} waits for {answers} with other classes or rules: {how}")
    return "\n".join(lines)
