"""Runs from Python: progress while they train, and results that a notebook displays."""

import html
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ducats.report import read_run, report_page
from ducats.report.figures import render_figure
from ducats.report.write import PAGE_FILE_NAME
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError
from ducats.utils.files import write_atomically
from ducats.utils.progress import EventListener
from ducats.utils.progress_display import show_progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from ducats.run.components import Components, RunPlan
    from ducats.run.context import WaitCallback
    from ducats.settings import PerformanceOptions

REPORT_HEIGHT = 700  # pixels of the report in a notebook


@dataclass(frozen=True)
class Picture:
    """A figure that a notebook displays."""

    png: bytes = field(repr=False)

    def _repr_png_(self) -> bytes:
        return self.png

    def save(self, path: str | Path) -> None:
        """Write the PNG file."""
        write_atomically(Path(path), lambda file: file.write(self.png))


@dataclass(frozen=True)
class ReportPage:
    """A report that a notebook displays; elsewhere, open its file."""

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" width="100%" height="{REPORT_HEIGHT}" style="border:0"></iframe>'


class RunResults(RunFolder):
    """A run folder with its results: the last line of a notebook cell shows the table of its stages.

    Args:
        folder: of a run that `adapt` or `ducats run` has started.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(Path(folder))

    def report(self, out: str | Path | None = None) -> ReportPage:
        """Write the report of the run, a page that needs no other file.

        Args:
            out: the file; by default report.html in the run folder.
        """
        result = report_page([self.path], Path(out) if out else self.path / PAGE_FILE_NAME)
        if result.broken:
            raise UserError(f"{self.path}: {result.broken[0].reason}")
        return ReportPage(result.page)

    def figure(self, name: str, *, round: int | None = None, images: Sequence[str] = ()) -> Picture:
        """Draw a figure of the run, by the names of `ducats figure`.

        Args:
            round: only this round, counted from 1, if the figure supports it.
            images: keys of pool images, if the figure supports them.
        """
        png, corrupt = render_figure(name, [read_run(self.path)], "png", round=round, images=images)
        for message in corrupt:
            warnings.warn(message, stacklevel=2)
        return Picture(png)

    def __repr__(self) -> str:
        return f"RunResults({str(self.path)!r})"

    def _repr_html_(self) -> str | None:
        from ducats.report.page import table_html
        from ducats.report.stage_table import evaluation_caption, stage_table

        stages = self.stages()
        if not stages:
            return None
        caption = html.escape(evaluation_caption(stages) or "")
        return f"{table_html(stage_table(stages))}<p>{caption}</p>"


def adapt(
    components: "Components",
    plan: "RunPlan",
    folder: str | Path,
    *,
    fabric: "Fabric | None" = None,
    identity: Mapping[str, Any] | None = None,
    performance: "PerformanceOptions | None" = None,
    on_event: EventListener | None = None,
    wait: "WaitCallback | None" = None,
) -> RunResults:
    """Run the plan in a run folder, or resume it; return its results.

    Args:
        components: the model is copied, so your model keeps its weights.
        folder: one folder per run. Make the same call with the same folder to resume after a kill or a pause.
        fabric: device, precision and processes; by default one process on the best device.
        identity: compared with the identity stored in the folder on resume; by default derived from
            components and plan.
        performance: data placement and execution options; by default chosen for the device.
        on_event: called with each event; by default, a terminal or notebook shows the progress.
        wait: called by each process while annotators still have to answer, with the round and the exception
            that reports the open questions or an invalid answer. The answers are checked again when it
            returns. Without it the run stops there.

    Raises:
        UserError: invalid input.
        AwaitingLabels: annotators have to answer and ``wait`` is None; call again when they have.
    """
    from ducats.run import run
    from ducats.settings import PerformanceOptions

    with show_progress() as shown:
        done = run(
            components,
            plan,
            folder,
            fabric=fabric,
            identity=identity,
            performance=performance or PerformanceOptions(),
            on_event=on_event or shown,
            wait=wait,
        )
    return RunResults(done.path)
