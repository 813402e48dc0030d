"""The section of one run on the page: verdict, curves, classes, calibration, samples, cost, settings."""
