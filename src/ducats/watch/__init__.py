"""Monitor runs from their folders. Imports no torch."""

from ducats.watch.dashboard import Dashboard, status_line
from ducats.watch.folders import discover_run_folders
from ducats.watch.reader import RunWatcher
from ducats.watch.run_state import OpenRound, RunState

__all__ = ["Dashboard", "OpenRound", "RunState", "RunWatcher", "discover_run_folders", "status_line"]
