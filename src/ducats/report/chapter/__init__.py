"""The section of one run on the page: verdict, curves, classes, calibration, samples, cost, settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ducats.figures.numbers import number
from ducats.figures.style import Look
from ducats.report import curves
from ducats.report.chapter import drawings, stages
from ducats.report.chapter.by_class import ByClass, by_class
from ducats.report.chapter.gain import picks_at_random, same_data
from ducats.report.chapter.pictured import Drawn, of_rounds, of_the_paper
from ducats.report.chapter.rounds import Why, why
from ducats.report.chapter.stages import Table
from ducats.report.chapter.state import Made, made, state
from ducats.report.chapter.worth import Worth, worth
from ducats.report.kinds import Kind
from ducats.report.read import Run

__all__ = ["Chapter", "Drawn", "chapter", "chosen"]

EVERY = 3  # up to this many runs, every run has a section
FULL = 2  # up to this many runs, every section has the paper's figures; otherwise only the first
MOST = 4  # run sections on a page
MANY = 100  # with more runs the page has no run sections: no single run represents a sweep
OURS = "duc"


@dataclass(frozen=True)
class Chapter:
    """Contents of a run section. Figures are SVG text, empty if there is nothing to draw.

    Args:
        key: prefix of the HTML ids in the section.
        name: name of the run folder.
        task: distinguishes the run's task from those of other runs on the page; empty if not needed.
        state: progress message; empty if the run is finished.
        worth: the result in words.
        measured: metrics of each stage.
        curve: figure: score over labels.
        over_clicks: figure: score over clicks; empty if each label is one click.
        errors: figure: calibration error over labels.
        beside: methods with random selection that are drawn for comparison.
        looks: line styles of the methods in the curves.
        by_class: results of each class before and after.
        classes: table of the classes that changed most.
        other_classes: table of the remaining classes.
        dumbbells: figure: each class before and after.
        calibration: calibration metrics of each stage.
        reliability: figure: accuracy against confidence at each stage.
        tempered: whether temperature scaling is shown for comparison.
        why: the samples selected in each round.
        bought: table of the rounds.
        rounds: figures about the rounds.
        paper: the paper's figures.
        costs: time and memory of each stage.
        lacking: a sentence about times and memory that were not recorded; empty if all were.
        seconds: figure: seconds of each epoch.
        losses: figure: losses of each epoch.
        terms: line styles of the loss terms.
        made: settings, digests, versions.
    """

    key: str
    name: str
    method: str
    seed: int
    task: str
    kind: Kind
    state: str
    worth: Worth
    measured: Table
    curve: str
    over_clicks: str
    errors: str
    beside: tuple[str, ...]
    looks: Mapping[str, Look]
    by_class: ByClass | None
    classes: Table | None
    other_classes: Table | None
    dumbbells: str
    calibration: Table
    reliability: str
    tempered: bool
    why: Why
    bought: Table
    rounds: tuple[Drawn, ...]
    paper: tuple[Drawn, ...]
    costs: Table
    lacking: str
    seconds: str
    losses: str
    terms: Mapping[str, Look]
    made: Made

    @property
    def title(self) -> str:
        """Method, task and seed."""
        return f"{self.method}{' on ' if self.task else ''}{self.task}, seed {self.seed}"

    @property
    def figures(self) -> list[str]:
        """All figures of the section."""
        own = [
            self.curve,
            self.over_clicks,
            self.errors,
            self.dumbbells,
            self.reliability,
            self.seconds,
            self.losses,
        ]
        return [*own, *(one.svg for one in (*self.rounds, *self.paper))]


def chosen(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that get a section.

    These are all runs if there are few, otherwise one per method: the finished run with the lowest seed. DUC
    comes first, since its selected samples are of most interest. A sweep of many runs has no run sections.
    """
    if len(runs) > MANY:
        return []
    if len(runs) <= EVERY:
        return list(runs)
    found: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (run.method != OURS, not run.finished, run.seed)):
        found.setdefault(run.method, run)
    return list(found.values())[:MOST]


def chapter(
    run: Run,
    others: Sequence[Run],
    key: str,
    look: Mapping[str, Look],
    *,
    task: str = "",
    short: bool = False,
) -> Chapter:
    """Build the section of a run.

    Args:
        run: the run of the section.
        others: all runs of the page.
        key: prefix of the HTML ids in the section.
        look: line styles of the methods on the page.
        task: distinguishes the run's task from those of other runs on the page.
        short: whether to leave out the paper's figures.
    """
    mine = look[run.method]
    blind = [
        other for other in others if other is not run and picks_at_random(other) and same_data(run, other)
    ]
    blind = [other for other in blind if other.method != run.method]
    drawn = {run.method: mine} | {other.method: look[other.method] for other in blind}
    known = any(number(stage, run.kind.headline) is not None for stage in run.stages)
    classes, picked = by_class(run), why(run)
    clicked = any(number(s, "clicks") not in (None, number(s, "labels")) for s in run.stages)
    return Chapter(
        key=key,
        name=run.name,
        method=run.method,
        seed=run.seed,
        task=task,
        kind=run.kind,
        state=state(run),
        worth=worth(run, others),
        measured=stages.measured(run),
        curve=_curve([run, *blind], drawn, key, "labels") if known else "",
        over_clicks=_curve([run, *blind], drawn, key, "clicks") if known and clicked else "",
        errors=_curve([run, *blind], drawn, key, "labels", "ece") if known else "",
        beside=tuple(dict.fromkeys(other.method for other in blind)),
        looks=drawn,
        by_class=classes,
        classes=stages.classes(classes.shown, classes) if classes else None,
        other_classes=stages.classes(classes.rest, classes) if classes else None,
        dumbbells=drawings.dumbbells(classes, mine, key) if classes else "",
        calibration=stages.calibration(run),
        reliability=drawings.reliabilities(run.stages, run.kind, mine, key)
        if any("reliability" in stage for stage in run.stages)
        else "",
        tempered=any("temperature_scaled" in stage for stage in run.stages),
        why=picked,
        bought=stages.rounds(picked.rounds, run.kind),
        rounds=of_rounds(run, key),
        paper=() if short else of_the_paper(run, key),
        costs=stages.costs(run),
        lacking=stages.lacking(run),
        seconds=drawings.seconds_by_epoch(run, mine, key)
        if any(number(epoch, "seconds") is not None for epoch in run.epochs)
        else "",
        losses=curves.loss_curves([run], run.method, prefix=key) if run.epochs else "",
        terms=curves.term_looks([run]),
        made=made(run),
    )


def _curve(runs: Sequence[Run], look: Mapping[str, Look], key: str, over: str, measure: str = "") -> str:
    kind = runs[0].kind
    measure, title = (measure, "calibration error") if measure else (kind.headline, kind.score)
    return curves.over_labels(runs, measure, title, over, look=look, prefix=key)
