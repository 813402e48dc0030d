"""Work on other machines: pieces of it on a Ray cluster, and commands that a process there does for somebody.

Ray is an extra, imported when it is asked for; torch is not needed here.
"""

from ducats.cluster.crew import Crew, Ended, Lost
from ducats.cluster.errand import run_errand
from ducats.cluster.joining import connected, seconds_of

__all__ = ["Crew", "Ended", "Lost", "connected", "run_errand", "seconds_of"]
