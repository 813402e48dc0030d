"""Monitor runs from their folders. Imports no torch."""

from ducats.watch.folders import run_folders
from ducats.watch.look import Watcher
from ducats.watch.show import Picture, line
from ducats.watch.state import Round, State

__all__ = ["Picture", "Round", "State", "Watcher", "line", "run_folders"]
