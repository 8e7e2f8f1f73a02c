"""One place that picks an implementation: `OVERLAND_KERNELS=reference|torch|fast|fla` (default fast).

Every hot loop has a plain reference beside its fast forms, and a test holds them together. `fast` takes the compiled
form where there is one and it could be built, else the best torch form; `torch` leaves the compiled ones out. `fla`
is `torch` with fla-core's Triton kernels for CUDA tensors: not checked on a GPU yet, so nothing takes it by itself.
"""

from __future__ import annotations

import os

from overland.errors import UsageError

CHOICES = ("reference", "torch", "fast", "fla")


def kernel_choice() -> str:
    """The implementation that the variable OVERLAND_KERNELS asks for. Raises UsageError for another value."""
    choice = os.environ.get("OVERLAND_KERNELS", "fast")
    if choice not in CHOICES:
        raise UsageError(f"OVERLAND_KERNELS={choice!r} is not a kernel set; valid: {', '.join(CHOICES)}")
    return choice
