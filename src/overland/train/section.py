"""The options of the training loops."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from overland.config import Section
from overland.corpus import MixtureSection


class LoopSection(Section):
    """What every training loop has."""

    steps: int = Field(200, ge=1)
    """Optimiser steps."""
    lr: float = Field(1e-3, gt=0)
    """Peak learning rate of AdamW."""
    warmup: int = Field(10, ge=0)
    """Steps over which the rate rises linearly."""
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """How the rate falls afterwards: half a cosine, a straight line over the last fifth (wsd), or not at all."""
    floor: float = Field(0.1, ge=0, le=1)
    """The share of lr at which the schedule ends."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averaging of gradients and of their squares."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's floor under the root of the squares."""
    weight_decay: float = Field(0.1, ge=0)
    """Decay of matrices; vectors, norms, biases, embeddings and convolution taps never decay."""
    clip: float = Field(5.0, ge=0)
    """Largest global norm of the gradient; 0 does not clip. Norms of 1 to 5 are ordinary for the nano model: cutting
    at 1 made it learn to copy measurably later."""
    micro_batches: int = Field(1, ge=1)
    """Pieces in which a step's batch is computed. Changes memory, not the result."""
    balance: Literal["quantile", "sign", "auxiliary", "none"] = "quantile"
    """How experts get their even share: the selection bias set by quantiles of the step's scores (quantile), or moved
    by a fixed amount (sign), a loss on the scores (auxiliary), or nothing."""
    balance_ema: float = Field(0.5, ge=0, lt=1)
    """Of quantile: share of the old bias that is kept; small steps are noisy and need more of it."""
    balance_bins: int = Field(0, ge=0)
    """Of quantile: histogram bins; 0 sorts the step's scores exactly."""
    balance_rate: float = Field(1e-3, gt=0)
    """Of sign: how far the bias moves in a step. Scores lie between 0 and 1."""
    balance_loss: float = Field(1e-2, ge=0)
    """Of auxiliary: the coefficient of the loss, which is 1 for an even load, in every layer."""
    balance_z: float = Field(0.0, ge=0)
    """Coefficient of the router's z-loss, with any of them; ST-MoE has 0.001."""
    capacity_factor: float = Field(0.0, ge=0)
    """The most tokens that an expert takes in a forward while training, as a multiple of the even share; what is beyond
    is dropped. 0 drops nothing."""
    capacity_drop: Literal["score", "position"] = "score"
    """Who is dropped: the weakest choices, or the latest in the order of the tokens."""
    qat: Literal["none", "even", "floor", "ceil"] = "none"
    """Train on what MXFP4 will keep of the routed experts, with this rule for a block's scale; the gradient goes
    straight to the weights, which are saved as they are. `quantize` with the same rule then costs no loss."""
    checkpointing: Literal["none", "layer"] = "none"
    """Activation checkpointing: with `layer` each layer is computed a second time in the backward pass, and a step
    holds the activations of one layer instead of all. The gradient is the same."""
    checkpoint_every: int = Field(50, ge=1)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many checkpoints stay on disk."""
    patience: int = Field(5, ge=1)
    """So many steps in a row with a loss or gradient that is not finite stop the run; fewer are skipped and counted."""
    shares_every: int = Field(10, ge=1)
    """Steps between two records of every expert's share of the tokens."""
    seed: int = 0
    """Seed of the order of the data."""


class PretrainSection(LoopSection):
    """Pretraining on packed text."""

    lr: float = Field(4e-3, gt=0)
    """Peak learning rate of AdamW."""
    batch: int = Field(16, ge=1)
    """Sequences a step."""
    length: int = Field(128, ge=2)
    """Tokens a sequence."""
    mixture: MixtureSection = MixtureSection()
    """Weights by domain, repetition caps and a curriculum; without any the corpus is one stream, read as it lies."""
    drill_share: float = Field(0.0, ge=0, le=1)
    """Share of the sequences that are copying drills instead of text: random tokens, said again and again."""


class SFTSection(LoopSection):
    """Supervised tuning on dialogues; only what the assistant said is learned."""

    lr: float = Field(2e-3, gt=0)
    """Peak learning rate of AdamW."""
    batch: int = Field(24, ge=1)
    """Dialogues a step."""
    members: int = Field(8, ge=1)
    """Dialogues that share one computed prefix; a step holds batch / members such groups."""
    weight_decay: float = Field(0.0, ge=0)
    """Decay of matrices; vectors, norms, biases, embeddings and convolution taps never decay."""
