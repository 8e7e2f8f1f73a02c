"""What quantisation did to the weights: the error of each tensor and of all of them, and the bytes saved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from overland.kernels import MXFP4_BLOCK


@dataclass(frozen=True)
class TensorError:
    """How far a tensor's quantised weights lie from the ones they replace. Sums, so that parts add up to a whole."""

    name: str
    weights: int
    squares: float
    """Sum of the squared weights."""
    squared_error: float
    """Sum of the squared differences."""
    worst: float
    """The largest absolute difference."""

    @classmethod
    def between(cls, name: str, before: Tensor, after: Tensor) -> TensorError:
        """The error of `after` as a stand-in for `before` (same shape)."""
        x, difference = before.double(), after.double() - before.double()
        return cls(
            name, x.numel(), float(x.square().sum()), float(difference.square().sum()), float(difference.abs().max())
        )

    def __add__(self, other: TensorError) -> TensorError:
        return TensorError(
            self.name,
            self.weights + other.weights,
            self.squares + other.squares,
            self.squared_error + other.squared_error,
            max(self.worst, other.worst),
        )

    @property
    def relative_error(self) -> float:
        """Norm of the difference over norm of the weights; 0 for weights that are all zero."""
        return math.sqrt(self.squared_error / self.squares) if self.squares else 0.0


@dataclass(frozen=True)
class QuantReport:
    """One entry for each layer's stacked expert tensors, `...experts.gate_up` and `...experts.down`."""

    rule: str
    tensors: tuple[TensorError, ...]
    bytes_before: int
    """Bytes of the routed experts in the dtype they had."""

    @property
    def weights(self) -> int:
        return sum(t.weights for t in self.tensors)

    @property
    def bytes_after(self) -> int:
        """Half a byte a weight and a scale byte a block."""
        return self.weights // 2 + self.weights // MXFP4_BLOCK

    @property
    def relative_error(self) -> float:
        """Over all tensors together: about 0.112 for normally distributed weights under the rule `even`."""
        return sum(self.tensors[1:], self.tensors[0]).relative_error

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the totals, and name, weights, relative and worst error of each tensor."""
        return {
            "format": "mxfp4",
            "scale_rule": self.rule,
            "weights": self.weights,
            "relative_error": self.relative_error,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "tensors": [
                {"name": t.name, "weights": t.weights, "relative_error": t.relative_error, "worst": t.worst}
                for t in self.tensors
            ],
        }
