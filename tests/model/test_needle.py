"""The indexer's two-stage training finds a fact anywhere in a context 16 times longer than what attention keeps."""

from __future__ import annotations

from benchmarks.needle import Task, measure


def test_the_trained_selection_recalls_a_fact_from_every_depth() -> None:
    task = Task(topk=16)
    assert task.length == 16 * task.topk
    found = measure(task, steps=(2, 30, 8), rows=4, held_out=40)
    curves, stages = found["curves"], found["stages"]
    assert min(curves["trained selection"]) > 0.95
    assert max(curves["indexer before warm-up"]) < 0.6
    assert max(curves["the last 16 tokens"][:-1]) < 0.2  # nothing but the selection reaches back
    assert stages["warm-up"]["mass"] > 0.8 > 4 * stages["dense"]["mass"]  # the kept keys' share of the attention
    assert stages["warm-up"]["divergence"] < 0.1 * stages["dense"]["divergence"]
