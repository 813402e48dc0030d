"""Choose what to label: samples, criteria, queries, units of one question, budgets."""
