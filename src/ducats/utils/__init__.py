"""Errors, files, randomness, resources: helpers without a better home."""
