"""Scoring backends, by name."""

from collections.abc import Mapping

from ducats.deploy.scoring.job import ScoringBackend
from ducats.deploy.scoring.local_backend import score_locally
from ducats.deploy.scoring.ray_backend import DEFAULT_RAY_CHUNKS, score_on_ray

SCORING_BACKENDS: Mapping[str, ScoringBackend] = {"local": score_locally, "ray": score_on_ray}
DEFAULT_CHUNKS: Mapping[str, int] = {"ray": DEFAULT_RAY_CHUNKS}  # other backends: one per process
