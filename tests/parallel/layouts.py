"""Every product of fsdp, copies, cp, tp and ep on four ranks, and those that the contract is held for."""

from __future__ import annotations

RANKS, EXPERTS = 4, 8
DEGREES = (1, 2, 4)


def products() -> list[str]:
    """As text; `fsdp` is less than the data-parallel ranks where the model lies there more than once."""
    found = []
    for tp in DEGREES:
        for cp in DEGREES:
            if RANKS % (tp * cp):
                continue
            dp = RANKS // (tp * cp)
            for fsdp in (degree for degree in DEGREES if degree <= dp):
                inside = fsdp * cp * tp
                found += [name(tp, cp, fsdp, ep) for ep in DEGREES if inside % ep == 0 and EXPERTS % ep == 0]
    return found


def name(tp: int, cp: int, fsdp: int, ep: int) -> str:
    """`tp=2,ep=4`: what is 1 is left out, but for fsdp."""
    degrees = {"tp": tp, "cp": cp, "ep": ep}
    return ",".join([*(f"{key}={value}" for key, value in degrees.items() if value > 1), f"fsdp={fsdp}"])


def recomputed(layout: str) -> str:
    """The same with every layer computed again in the backward pass, where its collectives run a second time too."""
    harder = any(part in layout for part in ("ep=", "tp=4", "cp=4"))
    return f"{layout},recompute=full" if harder else layout


PRODUCTS = products()
LAYOUTS = [
    "fsdp=4",
    "fsdp=2",
    "ep=4,fsdp=4",
    "ep=2,fsdp=4",
    "ep=2,fsdp=2",
    "tp=2,cp=2,ep=4,fsdp=1",
    "tp=2,ep=2,fsdp=2",
    "cp=2,ep=2,fsdp=2",
    "tp=4,ep=4,fsdp=1",
    "cp=4,ep=2,fsdp=1",
    "tp=2,ep=2,fsdp=1",
]
"""Those that the contract is held for so far, of all PRODUCTS."""
