"""Evaluate a model: metrics, calibration, and model selection without labels."""
