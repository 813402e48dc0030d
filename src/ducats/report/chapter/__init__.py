"""A run's own chapter of the page: was it worth it, for whom, how sure, why these samples, what it took."""

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

EVERY = 3  # runs: up to so many, each has a chapter
FULL = 2  # runs: up to so many, each has the paper's figures; else the first
MOST = 4  # chapters on a page
MANY = 100  # more runs than that are a sweep, which no single run stands for
OURS = "duc"


@dataclass(frozen=True)
class Chapter:
    """What the page says of one run; figures are SVG text, empty where there is nothing to draw.

    Args:
        key: what its ids begin with.
        name: of the run's folder.
        method: its method.
        seed: its seed.
        task: what tells its task from those of other runs on the page; empty if nothing has to.
        kind: images or pixels.
        state: how far it is, if it is not finished.
        worth: what came out, in words.
        measured: numbers of each stage.
        curve: the score over labels.
        over_clicks: the same over clicks, where they are not labels.
        errors: the calibration error over labels.
        beside: methods that picked at random, drawn with it.
        looks: of the methods in the curve.
        by_class: each class before and after.
        classes: the same as a table, those that changed most.
        other_classes: the others.
        dumbbells: drawn.
        calibration: numbers of each stage.
        reliability: accuracy against confidence at each stage.
        tempered: whether a tempered softmax is beside it.
        why: what it picked.
        bought: what each round bought.
        rounds: figures about that.
        paper: the paper's figures.
        costs: what each stage took.
        lacking: what the records do not say about that.
        seconds: of each epoch.
        losses: of each epoch.
        terms: of the losses.
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
        """The run in a list."""
        return f"{self.method}{' on ' if self.task else ''}{self.task}, seed {self.seed}"

    @property
    def figures(self) -> list[str]:
        """All that was drawn."""
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
    """The runs that get a chapter: all if they are few, else of each method the finished one of lowest seed.

    Our method comes first then, since its picks are what a reader asks about. A sweep of many runs has none.
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
    """Make the chapter of a run.

    Args:
        run: that it is about.
        others: all runs of the page.
        key: what its ids begin with.
        look: of the page's methods.
        task: what tells its task from those of the others.
        short: leave out the paper's figures.
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
        tempered=any("tempered" in stage for stage in run.stages),
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
