"""Progress of a run in a terminal or a log."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from ducats.utils.findings import format_duration, pluralise
from ducats.utils.progress import Activity, Event, EventListener, is_listening, listen_to_activities, no_op
from ducats.utils.terminal import TerminalConsole

REFRESH_SECONDS = 0.2  # between updates; reading the losses synchronises with the device
LINE_SECONDS = 30.0  # without a terminal: between two lines about the same epoch or activity
PHASE_LABELS = {"train": "training", "evaluate": "evaluating", "query": "querying", "done": "done"}


class ProgressDisplay:
    """Live progress bars in a terminal, one per named run and activity; otherwise lines."""

    def __init__(
        self, console: Console | None = None, *, transient: bool = False, activities: bool = True
    ) -> None:
        """Make a display.

        Args:
            transient: remove the bars at the end.
            activities: display the activities of this thread while the display is open.
        """
        self.console = console or TerminalConsole(stderr=True)
        self.bars = _Bars(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(min_width=12)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=self.console,
            disable=not self.console.is_terminal,
            expand=True,
            transient=transient,
            speed_estimate_period=1800,  # on a CPU, a step may take a minute
        )
        self._shows_activities, self._context = activities, ExitStack()
        self._tasks: dict[str, TaskID] = {}
        self._last_update: dict[str, float] = {}
        self._epoch: dict[str, int] = {}
        self._line_time = time.monotonic()  # of the last line, without a terminal
        self._first_step: dict[str, tuple[float, int]] = {}  # time and number of the first step seen
        self._activities: dict[int, TaskID] = {}

    def __enter__(self) -> "ProgressDisplay":
        self.bars.start()
        if self._shows_activities:
            self._context.enter_context(listen_to_activities(self.on_activity))
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()
        self._context.close()

    def __call__(self, event: Event, name: str = "") -> None:
        """Display one event of a run."""
        now = time.monotonic()
        skip = (
            event.phase == "train"
            and now - self._last_update.get(name, 0) < REFRESH_SECONDS
            and event.step < event.steps
        )
        if skip:
            return
        self._last_update[name] = now
        note = format_values(event.values())
        first_time, first_step = self._first_step.setdefault(name, (now, event.step))
        if self.console.is_terminal:
            self._update_bar(event, name, note)
        elif (
            event.phase != "train"
            or event.epoch != self._epoch.get(name)
            or now - self._line_time > LINE_SECONDS
        ):
            self._epoch[name] = event.epoch
            position = f"epoch {event.epoch}/{event.epochs}, step {event.step}/{event.steps}"
            if first_step < event.step < event.steps:
                seconds = (now - first_time) / (event.step - first_step) * (event.steps - event.step)
                position += f", about {format_duration(seconds)} left"
            losses = f"; {note}" if note else ""
            self._print_line(f"{progress_title(event, name)}, {position}{losses}")

    def on_activity(self, activity: Activity) -> None:
        """Display an activity: a bar while it lasts; without a terminal, lines.

        There is a line at the start of each activity, until events tell what is happening, and at intervals.
        """
        if self.console.is_terminal:
            self._update_activity_bar(activity)
        elif activity.done == 0 and not activity.ended and not self._first_step:
            self._print_line(f"{activity.text} …")
        elif not activity.ended and time.monotonic() - self._line_time > LINE_SECONDS:
            self._print_line(f"{activity.text}: {activity.done} done{_time_left(activity)}")

    def _update_activity_bar(self, activity: Activity) -> None:
        if activity.ended:
            task = self._activities.pop(id(activity), None)
            if task is not None:
                self.bars.remove_task(task)
            return
        if id(activity) not in self._activities:
            self._activities[id(activity)] = self.bars.add_task(activity.text, total=activity.total, note="")
        self.bars.update(self._activities[id(activity)], completed=activity.done)

    def _print_line(self, line: str) -> None:
        self._line_time = time.monotonic()
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _update_bar(self, event: Event, name: str, note: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self.bars.add_task(progress_title(event, name), total=event.steps, note="")
        self.bars.update(
            self._tasks[name],
            completed=event.step,
            total=event.steps,
            description=progress_title(event, name),
            note=note,
        )


_is_shown = threading.Lock()  # one display at a time


@contextmanager
def show_progress(*, delay: float = 0.0) -> Iterator[EventListener]:
    """Show progress of Python code in a terminal or a notebook, unless the caller shows it already.

    Args:
        delay: in a notebook, seconds before it appears.
    """
    from ducats.utils.notebook_display import NotebookDisplay, in_notebook

    console, notebook = TerminalConsole(stderr=True), in_notebook()
    if is_listening() or not (notebook or console.is_terminal) or not _is_shown.acquire(blocking=False):
        yield no_op
        return
    try:
        with NotebookDisplay(delay) if notebook else ProgressDisplay(console, transient=True) as display:
            yield display
    finally:
        _is_shown.release()


def _time_left(activity: Activity) -> str:
    if not activity.total or not activity.done:
        return ""
    seconds = (time.monotonic() - activity.started) / activity.done * (activity.total - activity.done)
    return f", about {format_duration(seconds)} left"


class _Bars(Progress):
    """Progress bars with the losses below, which would be cut in the same line.

    The last columns stay empty: in a full line, the `^C` of a terminal would break the display.
    """

    def get_renderable(self) -> RenderableType:
        return _Narrower(super().get_renderable(), len("^C") + 1)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            if note := task.fields["note"]:
                yield Padding(Text(note, style="dim"), (0, 0, 0, 2))


@dataclass(frozen=True)
class _Narrower:
    """A renderable that leaves the last columns of the terminal empty."""

    renderable: RenderableType
    columns: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.renderable, options.update_width(options.max_width - self.columns))


def progress_title(event: Event, name: str = "") -> str:
    """Describe the current stage of a run.

    >>> progress_title(Event("train", 2, 5, 12, 50, 600, 2500, 26, dict), "duc")
    'duc stage 2/5, 26 labels, training'
    """
    labels = pluralise(event.labels, "label")
    text = f"stage {event.stage}/{event.stages}, {labels}, {PHASE_LABELS[event.phase]}"
    return f"{name} {text}".strip()


def format_values(values: Mapping[str, float], max_values: int = 6) -> str:
    """Format the first few values.

    >>> format_values({"source/nll": 0.12345, "unlabelled/u_dis": 0.5})
    'source/nll 0.123, unlabelled/u_dis 0.500'
    """
    return ", ".join(f"{name} {value:.3f}" for name, value in list(values.items())[:max_values])
