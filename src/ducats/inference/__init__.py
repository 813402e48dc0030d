"""Use the model of a finished run: evaluate, predict, triage and export."""

from ducats.inference.calibrating import triage
from ducats.inference.exporting import Exported, export
from ducats.inference.images import predict
from ducats.inference.maps import predict_maps
from ducats.inference.measuring import Measured, measure
from ducats.inference.rule import Rule
from ducats.inference.trained import Trained, config_of, load_trained, usable_precision

__all__ = [
    "Exported",
    "Measured",
    "Rule",
    "Trained",
    "config_of",
    "export",
    "load_trained",
    "measure",
    "predict",
    "predict_maps",
    "triage",
    "usable_precision",
]
