"""The weights that a compiled step reads in every call: looked up once, until one of them is replaced."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from overland.kernels.choice import kernel_choice
from overland.kernels.compiled import Compiled


class Held:
    """Belongs to one module. `pointers` lie in the order of the weights last asked for, all of `dtype`.

    A copy of it, and what is read from a file, is empty: addresses are those of this process and these tensors.
    """

    def __init__(self) -> None:
        self._weights: list[Tensor | None] = []
        self._addresses: list[int | None] = []
        self._fits = False
        self.pointers: ctypes.Array[ctypes.c_void_p] | None = None
        self.dtype: torch.dtype | None = None

    def __reduce__(self) -> tuple[type[Held], tuple[()]]:
        return Held, ()

    def takes(self, native: Compiled, weights: Sequence[Tensor | None]) -> bool:
        """Whether the compiled form is asked for and runs for these weights: one dtype, on the CPU, whole in memory."""
        if kernel_choice() != "fast":
            return False
        if not self._same(weights):
            self._weights, self._addresses = list(weights), [None if x is None else x.data_ptr() for x in weights]
            self.dtype = next((x.dtype for x in weights if x is not None), None)
            self.pointers = (ctypes.c_void_p * len(self._addresses))(*self._addresses)
            self._fits = native.runs(*weights) and all(x is None or x.is_contiguous() for x in weights)
        return self._fits

    def _same(self, weights: Sequence[Tensor | None]) -> bool:
        """Whether these tensors lie where they lay; asked in every step, hence the plain loop."""
        if len(weights) != len(self._weights):
            return False
        dtype = self.dtype
        for x, held, address in zip(weights, self._weights, self._addresses):  # noqa: B905 (as many, and quicker)
            if x is not held:
                return False
            if x is not None and (x.data_ptr() != address or x.dtype is not dtype or not x.is_contiguous()):
                return False
        return True
