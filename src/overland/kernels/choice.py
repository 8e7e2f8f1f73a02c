"""One place that picks an implementation: `OVERLAND_KERNELS=reference|fast` (default fast).

Every hot loop has a plain reference beside its fast form, and a test holds the two together.
"""

from __future__ import annotations

import os

from overland.errors import UsageError

CHOICES = ("reference", "fast")


def kernel_choice() -> str:
    """The implementation that the variable OVERLAND_KERNELS asks for. Raises UsageError for another value."""
    choice = os.environ.get("OVERLAND_KERNELS", "fast")
    if choice not in CHOICES:
        raise UsageError(f"OVERLAND_KERNELS={choice!r} is not a kernel set; valid: {', '.join(CHOICES)}")
    return choice
