"""Use the model of a finished run: evaluate, predict, triage and export."""

from ducats.deploy.classification import predict
from ducats.deploy.evaluation import EvaluationResult, evaluate_run
from ducats.deploy.exporter import ExportResult, export
from ducats.deploy.segmentation import predict_label_maps
from ducats.deploy.trained_model import TrainedModel, load_run_config, load_trained_model, supported_precision
from ducats.deploy.triage_calibration import triage
from ducats.deploy.triage_rule import TriageRule

__all__ = [
    "EvaluationResult",
    "ExportResult",
    "TrainedModel",
    "TriageRule",
    "evaluate_run",
    "export",
    "load_run_config",
    "load_trained_model",
    "predict",
    "predict_label_maps",
    "supported_precision",
    "triage",
]
