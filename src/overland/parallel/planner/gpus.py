"""What the maker states of each GPU kind: dense peaks, memory, links. Nothing here is fitted.

Sources: NVIDIA's data sheets (dense figures, half of the sparse ones). `network` is the RDMA bandwidth of a GPU's own
adapter in the usual rail-optimised cluster; `domain` how many GPUs one NVLink domain joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from overland.errors import UsageError

PRECISIONS = ("bf16", "fp8", "mxfp8", "nvfp4")


@dataclass(frozen=True)
class GPU:
    """`tflops` by precision [TFLOP/s dense], `memory` [GiB], `hbm`, `nvlink`, `network` [GB/s, one direction]."""

    name: str
    generation: str
    tflops: dict[str, float]
    memory: float
    hbm: float
    nvlink: float
    domain: int
    network: float

    def peak(self, precision: str) -> float:
        """FLOP/s at `precision`; raises UsageError where this kind has no such units."""
        if precision not in self.tflops:
            raise UsageError(f"--precision = {precision!r}: {self.name} has {', '.join(self.tflops)}")
        return self.tflops[precision] * 1e12


def _hopper() -> dict[str, float]:
    return {"bf16": 989, "fp8": 1979}


def _blackwell(bf16: float, fp4: float) -> dict[str, float]:
    return {"bf16": bf16, "fp8": 2 * bf16, "mxfp8": 2 * bf16, "nvfp4": fp4}


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("a100", "ampere", {"bf16": 312}, 80, 2039, 300, 8, 25),
        GPU("h100", "hopper", _hopper(), 80, 3350, 450, 8, 50),
        GPU("h200", "hopper", _hopper(), 141, 4800, 450, 8, 50),
        GPU("h800", "hopper", _hopper(), 80, 3350, 200, 8, 50),
        GPU("b200", "blackwell", _blackwell(2250, 9000), 180, 8000, 900, 8, 50),
        GPU("b300", "blackwell", _blackwell(2250, 13500), 268, 8000, 900, 8, 100),
        GPU("gb200", "blackwell", _blackwell(2450, 9800), 186, 8000, 900, 72, 50),
        GPU("gb300", "blackwell", _blackwell(2450, 14700), 279, 8000, 900, 72, 100),
    )
}


def gpu(name: str) -> GPU:
    """The GPU kind of that name; raises UsageError naming the nearest."""
    plain = name.lower().removeprefix("dgx-")
    if plain not in GPUS:
        near = get_close_matches(plain, GPUS, 3, 0.3) or list(GPUS)
        raise UsageError(f"--gpu = {name!r} is not a known kind; nearest: {', '.join(near)}")
    return GPUS[plain]
