"""Suites on held-out tasks, text baselines, and how sure a figure is."""

from overland.evaluate.compression import KneserNey, baselines, gzip_bits_per_byte
from overland.evaluate.heldout import evaluate_policy, suite
from overland.evaluate.intervals import Interval, Paired, bootstrap_difference, paired_difference, pass_at_k, wilson
from overland.evaluate.outcomes import Outcome, outcome
from overland.evaluate.scores import Score, Scores, compare
from overland.evaluate.section import EvaluateSection
from overland.evaluate.table import comparison, comparison_table, difference, efforts_table

__all__ = [
    "EvaluateSection",
    "Interval",
    "KneserNey",
    "Outcome",
    "Paired",
    "Score",
    "Scores",
    "baselines",
    "bootstrap_difference",
    "compare",
    "comparison",
    "comparison_table",
    "difference",
    "efforts_table",
    "evaluate_policy",
    "gzip_bits_per_byte",
    "outcome",
    "paired_difference",
    "pass_at_k",
    "suite",
    "wilson",
]
