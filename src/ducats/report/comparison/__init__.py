"""Comparison of many runs: methods by tasks, ranks, costs and missing runs."""

from ducats.report.comparison.content import OTHERS, comparison, of_several_tasks, outcome

__all__ = ["OTHERS", "comparison", "of_several_tasks", "outcome"]
