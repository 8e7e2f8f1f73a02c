"""What a planner has to know of a model: its weights by shape and mesh, its FLOPs, what a token leaves for later.

Neutral to the family: a model is a list of layers, a layer a list of blocks (a mixer, a feed-forward, or both), and a
block a bag of weights with three figures. Everything else (bytes of a rank, time of a step) follows from these.

Shapes in weights: D model, P a mixer's width, H heads, I expert width, E experts, Z latent.
FLOPs are those of the forward pass; a backward pass costs twice as much. Attention is counted causal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

Group = Literal["dense", "expert", "embedding", "head"]
Split = Literal["column", "row", "none"]


@dataclass(frozen=True)
class Weight:
    """A parameter. `group`: which mesh shards it; `split`: how tensor parallel cuts it; `use`: a token's share."""

    name: str
    shape: tuple[int, ...]
    group: Group = "dense"
    split: Split = "none"
    use: float = 1.0
    matmul: bool = True

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, eq=False)
class Block:
    """A mixer or a feed-forward.

    `core` and `core_per_token`: FLOPs of the mixing itself, a part that grows with the tokens attended to and one that
    does not. `window`: tokens seen at most (0: all). `saved`: activation elements a token leaves for the backward pass
    when nothing is recomputed, `cheap` those of them that selective recomputation drops (norms, activation functions,
    up-projections of latents). `routed`: elements of a token that the all-to-all carries to one expert, of `top_k`.
    """

    kind: str
    weights: tuple[Weight, ...]
    core: float = 0.0
    core_per_token: float = 0.0
    window: int = 0
    saved: float = 0.0
    cheap: float = 0.0
    spread: float = 0.0  # the part of `saved` that lies with the routed copies of the token
    routed: int = 0
    top_k: int = 0
    experts: int = 0
    kv: float = 0.0  # elements a token's keys and values (or the state's share) are, for context parallel
    heads: int = 0

    def core_flops(self, seq: int) -> float:
        """Forward FLOPs of the mixing per token, averaged over a causal sequence of `seq` tokens."""
        seen = seq / 2 if not self.window or self.window >= seq else self.window * (1 - self.window / (2 * seq))
        return self.core * seen + self.core_per_token


@dataclass(frozen=True, eq=False)
class Architecture:
    """A model as the planner sees it."""

    name: str
    hidden: int
    vocab: int
    layers: tuple[tuple[Block, ...], ...]
    tied: bool = False
    final_vectors: tuple[Weight, ...] = ()
    mtp: tuple[Block, ...] = ()
    """Blocks of a multi-token-prediction module, trained beside the model but not in its checkpoint's count."""
    mtp_depth: int = 0
    """How many tokens ahead the module predicts: its blocks and the output head run once for each."""

    @property
    def ends(self) -> tuple[Weight, ...]:
        """Embedding, output head and the final norms."""
        shape = (self.vocab, self.hidden)
        head = () if self.tied else (Weight("lm_head", shape, "head", "column"),)
        return (Weight("embed_tokens", shape, "embedding", "column", matmul=False), *head, *self.final_vectors)

    def weights(self) -> list[Weight]:
        """Every parameter of the checkpoint (without MTP)."""
        return [w for layer in self.layers for block in layer for w in block.weights] + list(self.ends)

    def parameters(self) -> int:
        return sum(weight.numel for weight in self.weights())

    def active(self) -> int:
        """Parameters that one token meets, the input embedding included."""
        return round(sum(weight.numel * weight.use for weight in self.weights()))

    def blocks(self) -> list[Block]:
        return [block for layer in self.layers for block in layer]

    @cached_property
    def experts(self) -> int:
        return max((block.experts for block in self.blocks()), default=0)

    @cached_property
    def top_k(self) -> int:
        return max((block.top_k for block in self.blocks()), default=0)

    @cached_property
    def gated(self) -> bool:
        """Whether its experts multiply two projections (SwiGLU, SiTU) rather than square one."""
        up = [w for block in self.blocks() for w in block.weights if w.name in ("experts_up", "experts_down")]
        return bool(up) and up[0].shape[2] == 2 * up[1].shape[1]

    @cached_property
    def expert_biases(self) -> bool:
        return any(w.name == "experts_up_bias" for block in self.blocks() for w in block.weights)

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """The head counts that tensor parallel has to divide."""
        return tuple(sorted({block.heads for block in self.blocks() if block.heads}))


def matmul_flops(weights: tuple[Weight, ...] | list[Weight]) -> float:
    """Forward FLOPs per token of the products with these weights."""
    return sum(2.0 * w.numel * w.use for w in weights if w.matmul)


def flops_per_token(model: Architecture, seq: int, mtp: bool = True) -> float:
    """FLOPs of one trained token, forward and backward: causal attention, routed experts counted as executed.

    This is what Megatron-LM calls model FLOPs; recomputation is not in it. `mtp`: count the extra prediction module
    where the model trains one.
    """
    depth = model.mtp_depth if mtp else 0
    blocks = [*model.blocks(), *model.mtp * depth]
    forward = sum(matmul_flops(block.weights) + block.core_flops(seq) for block in blocks)
    return 3 * (forward + (1 + depth) * 2.0 * model.vocab * model.hidden)
