"""Training, scoring and evaluation of a model."""
