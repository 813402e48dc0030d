"""Scoring backends, by name."""

from collections.abc import Mapping

from ducats.scoring.job import ScoringBackend
from ducats.scoring.local_backend import score_locally
from ducats.scoring.ray_backend import DEFAULT_RAY_CHUNKS, score_on_ray

SCORING_BACKENDS: Mapping[str, ScoringBackend] = {"local": score_locally, "ray": score_on_ray}
DEFAULT_CHUNKS: Mapping[str, int] = {"ray": DEFAULT_RAY_CHUNKS}  # other backends: one per process
