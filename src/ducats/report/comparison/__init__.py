"""Comparison of many runs: methods by tasks, ranks, costs and missing runs."""
