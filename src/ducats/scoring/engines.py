"""Scoring backends, by name."""

from collections.abc import Mapping

from ducats.scoring.job import Engine
from ducats.scoring.local import local
from ducats.scoring.on_ray import PARTS, on_ray

ENGINES: Mapping[str, Engine] = {"local": local, "ray": on_ray}
DEFAULT_PARTS: Mapping[str, int] = {"ray": PARTS}  # other backends: one per process
