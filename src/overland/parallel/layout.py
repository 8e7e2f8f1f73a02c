"""How a model is laid over ranks, and what may be asked of it.

Two views of one world, as in training: dense (pp, dp, cp, tp) and sparse (pp, efsdp, ep). Expert parallel folds over
the dense view's dp, cp and tp, so ep divides dp * cp * tp.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from overland.errors import UsageError

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Layout:
    """Degrees of each parallelism; the data-parallel degree follows from the number of ranks.

    `vp`: model chunks a pipeline rank holds (1: plain 1F1B). `fsdp`: data-parallel ranks that share out parameters,
    gradients and optimiser states (FSDP; HSDP where it is less than dp), 0: parameters are whole on each of them and
    `zero` says what is shared out, optimiser states (1) or gradients too (2). `recompute`: activations computed again
    in the backward pass, "selective" for the cheap ones, "full" for all but a layer's input.
    """

    tp: int = 1
    pp: int = 1
    vp: int = 1
    ep: int = 1
    cp: int = 1
    fsdp: int = 0
    zero: int = 1
    recompute: str = "none"

    @classmethod
    def parse(cls, text: str) -> Layout:
        """From `tp=2,pp=8,vp=4,ep=64,cp=1[,fsdp=64][,zero=2][,recompute=full]`. Raises UsageError."""
        names = [field.name for field in fields(cls)]
        found: dict[str, int | str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name not in names:
                raise UsageError(f"--layout: {part!r}: a part is NAME=VALUE with NAME one of {', '.join(names)}")
            if name in found:
                raise UsageError(f"--layout: {name} is given twice")
            found[name] = value if name == "recompute" else _degree(name, value)
        if found.get("recompute", "none") not in RECOMPUTE:
            raise UsageError(f"--layout: recompute = {found['recompute']!r}; valid: {', '.join(RECOMPUTE)}")
        if found.get("zero", 1) not in (1, 2):
            raise UsageError(f"--layout: zero = {found['zero']}; valid: 1, 2 (for stage 3 give fsdp=RANKS)")
        return cls(**found)  # type: ignore[arg-type]

    def dp(self, ranks: int) -> int:
        """Data-parallel degree of the dense view in a world of `ranks`."""
        return ranks // (self.tp * self.pp * self.cp)

    def shards(self, ranks: int) -> int:
        """Ranks over which `parallelize` cuts what a tp rank has of a dense weight: fsdp (dp without it) * cp."""
        return (self.fsdp or self.dp(ranks)) * self.cp

    def copies(self, ranks: int) -> int:
        """How often the model then lies on a pipeline stage's ranks."""
        return ranks // (self.pp * self.shards(ranks) * self.tp)

    def efsdp(self, ranks: int) -> int:
        """Ranks that hold the same experts: what is left of a pipeline stage beside ep."""
        return max(1, ranks // (self.pp * self.ep))

    def with_(self, **changes: int | str) -> Layout:
        return replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        text = ",".join(f"{name}={getattr(self, name)}" for name in ("tp", "pp", "vp", "ep", "cp"))
        if self.fsdp:
            text += f",fsdp={self.fsdp}"
        elif self.zero != 1:
            text += f",zero={self.zero}"
        return text + (f",recompute={self.recompute}" if self.recompute != "none" else "")


def _degree(name: str, value: str) -> int:
    least = 0 if name == "fsdp" else 1
    if not (value.isascii() and value.isdigit()) or int(value) < least:
        raise UsageError(f"--layout: {name} = {value!r} is not a whole number from {least}")
    return int(value)


def nearest_divisors(value: int, whole: int, count: int = 3) -> list[int]:
    """The divisors of `whole` nearest to `value`, in order of size."""
    divisors = [d for d in range(1, int(whole**0.5) + 1) if whole % d == 0]
    divisors = sorted({*divisors, *(whole // d for d in divisors)})
    return sorted(sorted(divisors, key=lambda d: (abs(d - value), d))[:count])


def refuse(field: str, value: int, what: str, whole: int) -> UsageError:
    """The error of a degree that does not divide: names the field, the value and the nearest valid choices."""
    near = ", ".join(map(str, nearest_divisors(value, whole)))
    return UsageError(f"{field} = {value} does not divide {what} = {whole}; nearest valid: {near}")
