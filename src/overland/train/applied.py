"""What a training recipe asks to be applied to the model while a stage runs, and taken back behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import nn

from overland.transform import apply_qat, checkpoint_layers, remove_qat, uncheckpoint_layers


class Asks(Protocol):
    """The fields of a section that say so (LoopSection, RLSection)."""

    @property
    def qat(self) -> str: ...

    @property
    def checkpointing(self) -> str: ...


@contextmanager
def applied(model: nn.Module, section: Asks) -> Iterator[None]:
    """QAT of the routed experts with the scale rule `section.qat`, and layers that are recomputed; removed at the end.

    Weights keep their names and their precision throughout. Raises UsageError where the model has no routed experts, or
    their widths are no multiples of 32.
    """
    try:
        if section.qat != "none":
            apply_qat(model, rule=section.qat)
        if section.checkpointing == "layer":
            checkpoint_layers(model)
        yield
    finally:
        if section.checkpointing == "layer":
            uncheckpoint_layers(model)
        if section.qat != "none":
            remove_qat(model)
