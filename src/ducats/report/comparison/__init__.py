"""Many runs beside each other: methods by tasks, ranks, what they take, and which runs are missing."""

from ducats.report.comparison.content import OTHERS, comparison, of_several_tasks, outcome

__all__ = ["OTHERS", "comparison", "of_several_tasks", "outcome"]
