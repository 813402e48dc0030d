"""Hyperparameter search: runs ranked by an estimate of their target risk."""

from ducats.tune.search import Outcome as Outcome
from ducats.tune.search import Tuned as Tuned
from ducats.tune.search import tune as tune
from ducats.tune.shown import table as table
