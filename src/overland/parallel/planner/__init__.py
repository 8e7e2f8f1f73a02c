"""Predicts step time and memory of a model, cluster and layout, and ranks the layouts. See docs/parallel.md."""

from overland.parallel.planner.architecture import Architecture, flops_per_token
from overland.parallel.planner.ask import ask
from overland.parallel.planner.chart import error_chart, layout_chart
from overland.parallel.planner.explain import BreakEven, break_even, neighbours, remedies
from overland.parallel.planner.gpus import GPUS, gpu
from overland.parallel.planner.job import Job
from overland.parallel.planner.models import architecture, model_names, truncated
from overland.parallel.planner.prediction import Prediction, capacity_gib, natural, predict
from overland.parallel.planner.search import Ranking, rank

__all__ = [
    "GPUS",
    "Architecture",
    "BreakEven",
    "Job",
    "Prediction",
    "Ranking",
    "architecture",
    "ask",
    "break_even",
    "capacity_gib",
    "error_chart",
    "flops_per_token",
    "gpu",
    "layout_chart",
    "model_names",
    "natural",
    "neighbours",
    "predict",
    "rank",
    "remedies",
    "truncated",
]
