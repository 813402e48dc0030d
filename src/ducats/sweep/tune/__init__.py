"""Hyperparameter search: runs ranked by an estimate of their target risk."""

from ducats.sweep.tune.search import TrialResult as TrialResult
from ducats.sweep.tune.search import TuningResult as TuningResult
from ducats.sweep.tune.search import tune as tune
