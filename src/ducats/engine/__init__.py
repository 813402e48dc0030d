"""The engine: passes over data with a model. Fit, score, evaluate."""
