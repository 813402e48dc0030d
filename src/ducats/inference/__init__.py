"""What a finished run's model says about other images: measured against labels, or written down."""

from ducats.inference.images import predict
from ducats.inference.maps import predict_maps
from ducats.inference.measuring import Measured, measure
from ducats.inference.trained import Trained, config_of, load_trained, usable_precision

__all__ = [
    "Measured",
    "Trained",
    "config_of",
    "load_trained",
    "measure",
    "predict",
    "predict_maps",
    "usable_precision",
]
