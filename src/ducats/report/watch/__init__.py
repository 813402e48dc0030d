"""Monitor runs from their folders. Imports no torch."""

from ducats.report.watch.dashboard import Dashboard, status_line
from ducats.report.watch.reader import RunWatcher
from ducats.report.watch.run_state import OpenRound, RunState

__all__ = ["Dashboard", "OpenRound", "RunState", "RunWatcher", "status_line"]
