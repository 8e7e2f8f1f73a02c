"""Run a reference implementation in fp64 throughout.

Transformers casts to fp32 by name in norms, softmaxes, routers and recurrences, whatever the model's dtype is. Under
`widened()` every such request is answered in fp64, so that two implementations can be compared to fp64's accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Widened(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*args, **kwargs)


@contextmanager
def widened() -> Iterator[None]:
    """fp64 wherever fp32 is asked for, and as the default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(before)
