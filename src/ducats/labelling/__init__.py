"""Labelling tools: our own page and Label Studio. They need no torch."""
