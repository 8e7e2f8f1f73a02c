"""Suites on held-out tasks, text baselines, and how sure a figure is."""
