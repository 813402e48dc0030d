"""Show runs in the terminal: one in full, several in a table, or one line per run for logs."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ducats.report.stage_table import terminal_stage_table
from ducats.report.watch.run_state import METRIC_NAMES, RunState
from ducats.report.watch.text_plots import braille_plot, sparkline
from ducats.runfolder.records import describe_audit, describe_stop
from ducats.utils.findings import format_duration, pluralise

PHASE_STYLES = {"finished": "green", "waiting": "yellow", "empty": "dim"}
BAR_WIDTH, PLOT_WIDTH, PLOT_HEIGHT = 30, 36, 6
# Columns of the table that are left out one by one until it fits the terminal, the least important first.
OPTIONAL_COLUMNS = ("computing", "over labels", "ECE %", "annotation", "labels")
UNBOUNDED_COLUMNS = 1000  # terminal columns; wider than any output
SHORT_METRIC_NAMES = {"accuracy": "acc", "mean_iou": "mIoU"}  # for table headers
SILENCE_NOTICE_SECONDS = 60.0  # seconds without a write until this is reported


@dataclass(frozen=True)
class Dashboard:
    """Full view of one run, or a table of several runs, fitted to the terminal width."""

    states: Sequence[RunState]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def measure(renderable: RenderableType) -> Measurement:
            return Measurement.get(console, options.update(max_width=UNBOUNDED_COLUMNS), renderable)

        if len(self.states) == 1:
            yield _render_run(self.states[0], lambda shown: measure(shown).maximum <= options.max_width)
        else:
            yield _render_table(self.states, lambda shown: measure(shown).minimum <= options.max_width)


def status_line(state: RunState) -> str:
    """Return the status of a run in one line.

    >>> from pathlib import Path
    >>> status_line(RunState(Path("/runs/a"), phase="training", epoch=3, epochs=20, seconds_left=90.0))
    'a: training, 3 of 20 epochs, about 1.5 min left'
    """
    phrases = [f"{state.name}: {state.describe()}"]
    if curve := state.learning_curve():
        phrases.append(f"{METRIC_NAMES[state.headline]} {100 * curve[-1][1]:.1f} %")
    if ece := state.learning_curve("ece"):
        phrases.append(f"ECE {100 * ece[-1][1]:.1f} %")
    if state.audit is not None:
        phrases.append(describe_audit(state.audit))
    if state.labels_spent is not None:
        # At the last evaluation; more may have been acquired since.
        phrases[-1] += f" with {pluralise(state.labels_spent, 'label')}"
    phrases += _annotation_phrases(state)
    if state.seconds_left is not None:
        phrases.append(f"about {format_duration(state.seconds_left)} left")
    return ", ".join(phrases) + "".join(f"; {problem}" for problem in state.problems)


def _render_run(state: RunState, fits: Callable[[RenderableType], bool]) -> RenderableType:
    renderables: list[RenderableType] = [_title(state)]
    if state.epochs:
        renderables += [_progress_bar(state), Text(", ".join(_cost_phrases(state)), style="dim")]
    if state.stages:
        table, curve = terminal_stage_table(state.stages), _learning_curve(state)
        side_by_side = Table.grid(padding=(0, 3))
        side_by_side.add_row(table, *curve)
        renderables += [Text(""), *([side_by_side] if fits(side_by_side) else [table, *curve])]
    if state.added_classes:
        renderables.append(Text(f"classes that the source lacks: {', '.join(state.added_classes)}"))
    if state.audit is not None:
        renderables.append(Text(f"by the audit: {describe_audit(state.audit)}"))
    if state.stop is not None:
        renderables.append(Text(describe_stop(state.stop)))
    return Group(*renderables, *_loss_table(state), *_messages(state))


def _title(state: RunState) -> Text:
    method = f"{state.method}  " if state.method and state.method not in state.name else ""
    return Text.assemble((state.name, "bold"), "  ", (method, "dim"), (state.describe(), _style(state)))


def _style(state: RunState) -> str:
    stopped = state.is_active is False and state.phase not in ("finished", "waiting", "empty")
    return "red" if stopped else PHASE_STYLES.get(state.phase, "cyan")


def _progress_bar(state: RunState) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    done = f"epoch {state.epoch}/{state.epochs}"
    grid.add_row(ProgressBar(state.epochs or 0, state.epoch, width=BAR_WIDTH), done)
    return grid


def _cost_phrases(state: RunState) -> list[str]:
    """Summarise the cost of the run and the time left."""
    phrases = []
    if state.n_rounds:
        phrases.append(f"{state.n_labelled_rounds} of {pluralise(state.n_rounds, 'round')} labelled")
    if state.compute_seconds is not None:
        phrases.append(f"{format_duration(state.compute_seconds)} of computing")
    phrases += _annotation_phrases(state)
    if state.seconds_left is not None:
        phrases.append(
            f"about {format_duration(state.seconds_left)} left"
            + (" after annotation" if state.phase == "waiting" else "")
        )
    return phrases


def _annotation_phrases(state: RunState) -> list[str]:
    if state.annotation_seconds is None:
        return []
    timed = f" ({state.timed_answers})" if state.timed_answers else ""
    return [f"{format_duration(state.annotation_seconds)} of annotation{timed}"]


def _learning_curve(state: RunState) -> list[RenderableType]:
    """Draw the learning curve if it has at least two points."""
    points = state.learning_curve()
    if len(points) < 2:
        return []
    rows = braille_plot(points, width=PLOT_WIDTH, height=PLOT_HEIGHT)
    low, high = min(y for _, y in points), max(y for _, y in points)
    y_labels = [f"{100 * high:.1f}", *[""] * (PLOT_HEIGHT - 2), f"{100 * low:.1f}"]
    text = Text(f"{METRIC_NAMES[state.headline]} % over labels\n", style="bold")
    for y_label, row in zip(y_labels, rows, strict=True):
        text.append(f"{y_label:>6} ", style="dim")
        text.append(f"{row}\n", style="cyan")
    first, last = f"{points[0][0]:,.0f}", f"{points[-1][0]:,.0f}"
    text.append(f"{'':7}{first}{last:>{PLOT_WIDTH - len(first)}}", style="dim")
    return [text]


def _loss_table(state: RunState) -> list[RenderableType]:
    if not state.losses:
        return []
    grid = Table.grid(padding=(0, 2))
    for name in list(dict.fromkeys(name for losses in state.losses for name in losses)):
        values = [losses[name] for losses in state.losses if name in losses and losses[name] == losses[name]]
        last_value = state.losses[-1].get(name)
        grid.add_row(
            name, "–" if last_value is None else f"{last_value:.4f}", Text(sparkline(values), style="magenta")
        )
    grid.columns[1].justify = "right"
    return [Text("\nmean losses: last epoch, all epochs", style="bold"), grid]


def _messages(state: RunState) -> list[RenderableType]:
    """Return hints for the user and problems of the run."""
    hints = []
    if state.phase == "waiting":
        resume_hint = "; then run the same `ducats run` command again" if state.is_active is False else ""
        hints.append(
            f"answer with `ducats label {shlex.quote(str(state.folder))}` or with answer files{resume_hint}"
        )
    elif state.phase not in ("finished", "empty") and state.seconds_since_write is not None:
        ago = format_duration(state.seconds_since_write)
        if state.is_active is False:
            hints.append(
                f"not running on this machine, last write {ago} ago; run the same command again to resume"
            )
        elif state.is_active is None and state.seconds_since_write > SILENCE_NOTICE_SECONDS:
            hints.append(f"last write {ago} ago")
    messages: list[RenderableType] = [Text(text, style="dim") for text in hints]
    return messages + [Text(problem, style="yellow") for problem in state.problems]


def _render_table(states: Sequence[RunState], fits: Callable[[RenderableType], bool]) -> RenderableType:
    metric_names = sorted({SHORT_METRIC_NAMES[state.headline] for state in states})
    columns: dict[str, Callable[[RunState], str]] = {
        "labels": lambda state: "–" if state.labels_spent is None else f"{state.labels_spent:,}",
        f"{' or '.join(metric_names)} %": lambda state: _last_percent(state.learning_curve()),
        "ECE %": lambda state: _last_percent(state.learning_curve("ece")),
        "over labels": lambda state: sparkline([y for _, y in state.learning_curve()], max_points=10),
        "computing": lambda state: _format_seconds(state.compute_seconds),
        "annotation": lambda state: (
            "≥ " * bool(state.timed_answers) + _format_seconds(state.annotation_seconds)
        ),
        "left": lambda state: _format_seconds(state.seconds_left),
    }
    cells = {name: [cell(state) for state in states] for name, cell in columns.items()}
    cells = {name: column for name, column in cells.items() if set(column) - {"–", ""}}
    table = _runs_table(states, cells)
    for name in OPTIONAL_COLUMNS:
        if not fits(table):
            cells.pop(name, None)
            table = _runs_table(states, cells)
    problems = [
        Text(f"{state.name}: {problem}", style="yellow") for state in states for problem in state.problems
    ]
    return Group(table, *problems)


def _runs_table(states: Sequence[RunState], cells: Mapping[str, Sequence[str]]) -> Table:
    """Return a row per run; ``cells`` are the columns after name and status."""
    table = Table(header_style="bold")
    table.add_column("run", overflow="fold", min_width=8)
    table.add_column("status", overflow="fold", min_width=12)
    for name, column in cells.items():
        justify: JustifyMethod = "left" if name == "over labels" else "right"
        table.add_column(name, justify=justify, no_wrap=True, min_width=max(map(cell_len, (name, *column))))
    for row, state in enumerate(states):
        description = Text(state.describe(), style=_style(state))
        table.add_row(Text(state.name), description, *(column[row] for column in cells.values()))
    return table


def _last_percent(curve: Sequence[tuple[float, float]]) -> str:
    return f"{100 * curve[-1][1]:.1f}" if curve else "–"


def _format_seconds(seconds: float | None) -> str:
    return "–" if seconds is None else format_duration(seconds)
