"""Comparison of many runs: methods by tasks, ranks, costs and missing runs."""

from ducats.report.comparison.context import (
    DEFAULT_BASELINES,
    build_comparison,
    covers_several_tasks,
    overall_headline,
)

__all__ = ["DEFAULT_BASELINES", "build_comparison", "covers_several_tasks", "overall_headline"]
