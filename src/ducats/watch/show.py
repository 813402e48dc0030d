"""Show runs in the terminal: one in full, several in a table, or one line per run for logs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ducats.progress_display import stage_table
from ducats.watch.draw import plot, spark
from ducats.watch.state import SHOWN, State

STYLES = {"finished": "green", "waiting": "yellow", "nothing": "dim"}
BAR, PLOT_WIDTH, PLOT_HEIGHT = 30, 36, 6
WIDE = 110  # terminal columns needed for the full table
FAR = 1000  # terminal columns; wider than any output
MEASURES = {"accuracy": "acc", "mean_iou": "mIoU"}  # for table headers
QUIET = 60.0  # seconds without a write until this is reported


@dataclass(frozen=True)
class Picture:
    """Full view of one run, or a table of several runs, fitted to the terminal width."""

    states: Sequence[State]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def fits(drawn: RenderableType) -> bool:
            room = options.update(max_width=FAR)
            return Measurement.get(console, room, drawn).maximum <= options.max_width

        if len(self.states) == 1:
            yield _one(self.states[0], fits)
        else:
            yield _several(self.states, wide=options.max_width >= WIDE)


def line(state: State) -> str:
    """Return the status of a run in one line.

    >>> from pathlib import Path
    >>> line(State(Path("/runs/a"), phase="training", epoch=3, epochs=20, left=90.0))
    'a: training, 3 of 20 epochs, about 1.5 min left'
    """
    parts = [f"{state.name}: {state.words()}"]
    if curve := state.curve():
        parts.append(f"{SHOWN[state.headline]} {100 * curve[-1][1]:.1f} %")
    if ece := state.curve("ece"):
        parts.append(f"ECE {100 * ece[-1][1]:.1f} %")
    if state.labels is not None:
        parts[-1] += (
            f" with {state.labels} labels"  # at the last evaluation; more may have been acquired since
        )
    if state.people_seconds is not None:
        parts.append(f"{duration(state.people_seconds)} of annotation")
    if state.left is not None:
        parts.append(f"about {duration(state.left)} left")
    return ", ".join(parts) + "".join(f"; {sentence}" for sentence in state.wrong)


def duration(seconds: float) -> str:
    """Format a duration.

    >>> [duration(s) for s in (4.2, 59.7, 90, 5400, 200000)]
    ['4 s', '60 s', '1.5 min', '1.5 h', '2.3 days']
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    for size, name, more in ((60, "min", 3600), (3600, "h", 2 * 86400)):
        if seconds < more:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds / 86400:.1f} days"


def _one(state: State, fits: Callable[[RenderableType], bool]) -> RenderableType:
    parts: list[RenderableType] = [_title(state)]
    if state.epochs:
        parts += [_bar(state), Text(", ".join(_sums(state)), style="dim")]
    if state.stages:
        table, curve = stage_table(state.stages), _curve(state)
        beside = Table.grid(padding=(0, 3))
        beside.add_row(table, *curve)
        parts += [Text(""), *([beside] if fits(beside) else [table, *curve])]
    return Group(*parts, *_losses(state), *_notes(state))


def _title(state: State) -> Text:
    method = f"{state.method}  " if state.method and state.method not in state.name else ""
    return Text.assemble((state.name, "bold"), "  ", (method, "dim"), (state.words(), _style(state)))


def _style(state: State) -> str:
    stopped = state.at_work is False and state.phase not in ("finished", "waiting", "nothing")
    return "red" if stopped else STYLES.get(state.phase, "cyan")


def _bar(state: State) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    done = f"epoch {state.epoch}/{state.epochs}"
    grid.add_row(ProgressBar(state.epochs or 0, state.epoch, width=BAR), done)
    return grid


def _sums(state: State) -> list[str]:
    """Summarise the cost of the run and the time left."""
    said = []
    if state.rounds:
        said.append(f"{state.bought} of {state.rounds} rounds labelled")
    if state.seconds is not None:
        said.append(f"{duration(state.seconds)} of computing")
    if state.people_seconds is not None:
        said.append(f"{duration(state.people_seconds)} of annotation")
    if state.left is not None:
        said.append(
            f"about {duration(state.left)} left" + (" after annotation" if state.phase == "waiting" else "")
        )
    return said


def _curve(state: State) -> list[RenderableType]:
    """Draw the learning curve if it has at least two points."""
    points = state.curve()
    if len(points) < 2:
        return []
    rows = plot(points, width=PLOT_WIDTH, height=PLOT_HEIGHT)
    low, high = min(y for _, y in points), max(y for _, y in points)
    marks = [f"{100 * high:.1f}", *[""] * (PLOT_HEIGHT - 2), f"{100 * low:.1f}"]
    text = Text(f"{SHOWN[state.headline]} % over labels\n", style="bold")
    for mark, row in zip(marks, rows, strict=True):
        text.append(f"{mark:>6} ", style="dim")
        text.append(f"{row}\n", style="cyan")
    first, last = f"{points[0][0]:,.0f}", f"{points[-1][0]:,.0f}"
    text.append(f"{'':7}{first}{last:>{PLOT_WIDTH - len(first)}}", style="dim")
    return [text]


def _losses(state: State) -> list[RenderableType]:
    if not state.losses:
        return []
    grid = Table.grid(padding=(0, 2))
    for name in list(dict.fromkeys(name for one in state.losses for name in one)):
        values = [one[name] for one in state.losses if name in one and one[name] == one[name]]
        now = state.losses[-1].get(name)
        grid.add_row(name, "–" if now is None else f"{now:.4f}", Text(spark(values), style="magenta"))
    grid.columns[1].justify = "right"
    return [Text("\nmean losses: last epoch, all epochs", style="bold"), grid]


def _notes(state: State) -> list[RenderableType]:
    """Return hints for the user and problems of the run."""
    said = []
    if state.phase == "waiting":
        go_on = "; then run the same `ducats run` command again" if state.at_work is False else ""
        said.append(f"answer with `ducats label {state.folder}` or with answer files{go_on}")
    elif state.phase not in ("finished", "nothing") and state.silent is not None:
        ago = duration(state.silent)
        if state.at_work is False:
            said.append(
                f"not running on this machine, last write {ago} ago; run the same command again to resume"
            )
        elif state.at_work is None and state.silent > QUIET:
            said.append(f"last write {ago} ago")
    notes: list[RenderableType] = [Text(sentence, style="dim") for sentence in said]
    return notes + [Text(sentence, style="yellow") for sentence in state.wrong]


def _several(states: Sequence[State], *, wide: bool) -> RenderableType:
    measures = sorted({MEASURES[state.headline] for state in states})
    numbers: dict[str, Callable[[State], str]] = {
        "labels": lambda state: "–" if state.labels is None else f"{state.labels:,}",
        f"{' or '.join(measures)} %": lambda state: _last(state.curve()),
        "ECE %": lambda state: _last(state.curve("ece")),
        "over labels": lambda state: spark([y for _, y in state.curve()], most=10),
        "computing": lambda state: _time(state.seconds),
        "annotation": lambda state: _time(state.people_seconds),
        "left": lambda state: _time(state.left),
    }
    # Leave out empty columns, and the least important one in a narrow terminal.
    cells = {name: [cell(state) for state in states] for name, cell in numbers.items()}
    shown = [
        name for name, column in cells.items() if set(column) - {"–", ""} and (wide or name != "computing")
    ]
    table = Table(header_style="bold")
    table.add_column("run", overflow="fold", min_width=8)
    table.add_column("status", overflow="fold", min_width=12)
    for name in shown:
        table.add_column(name, justify="left" if name == "over labels" else "right", no_wrap=True)
    for row, state in enumerate(states):
        words = Text(state.words(), style=_style(state))
        table.add_row(Text(state.name), words, *(cells[name][row] for name in shown))
    wrong = [Text(f"{state.name}: {said}", style="yellow") for state in states for said in state.wrong]
    return Group(table, *wrong)


def _last(curve: Sequence[tuple[float, float]]) -> str:
    return f"{100 * curve[-1][1]:.1f}" if curve else "–"


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)
