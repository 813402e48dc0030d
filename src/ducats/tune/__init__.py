"""Hyperparameter search: runs ranked by an estimate of their target risk."""

from ducats.tune.result_table import trials_table as trials_table
from ducats.tune.search import TrialResult as TrialResult
from ducats.tune.search import TuningResult as TuningResult
from ducats.tune.search import tune as tune
