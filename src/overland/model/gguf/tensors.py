"""What a model's parameters are called in a GGUF file, and how they lie there.

llama.cpp stacks the experts of a layer, absorbs MLA's keys and values, keeps -exp(A_log), and only the product of an
attention residual's norm and query. It has one epsilon for all norms: where latents have their own, the matrix that
makes them is scaled, which is the same. Shapes here are numpy's, which GGUF counts from the other end.
Shapes: E experts, Z expert input, I expert width, H heads, D model. Source: llama.cpp's converters, October 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from overland.model.config import DecoderConfig
from overland.model.gguf.layouts import Layout
from overland.model.rope import frequencies

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """One tensor of the file: `make()` gives its values; `wide` ones stay fp32 whatever the file's type."""

    name: str
    make: Callable[[], Tensor]
    wide: bool = False


TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
# Below model.layers.N. on our side and blk.N. on theirs; a bias goes with its weight.
PLAIN = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.f_a_proj": "ssm_f_a",
    "self_attn.f_b_proj": "ssm_f_b",
    "self_attn.g_a_proj": "ssm_g_a",
    "self_attn.g_b_proj": "ssm_g_b",
    "self_attn.b_proj": "ssm_beta",
    "self_attn.o_norm": "ssm_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "block_sparse_moe.routed_expert_down_proj": "ffn_routed_down",
    "block_sparse_moe.routed_expert_norm": "ffn_routed_norm",
    "block_sparse_moe.routed_expert_up_proj": "ffn_routed_up",
    "block_sparse_moe.shared_experts.gate_proj": "ffn_gate_shexp",
    "block_sparse_moe.shared_experts.up_proj": "ffn_up_shexp",
    "block_sparse_moe.shared_experts.down_proj": "ffn_down_shexp",
}
WIDE = {
    "self_attn.q_conv1d.weight": "ssm_conv1d_q.weight",
    "self_attn.k_conv1d.weight": "ssm_conv1d_k.weight",
    "self_attn.v_conv1d.weight": "ssm_conv1d_v.weight",
    "self_attn.dt_bias": "ssm_dt.bias",
    "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
}
LATENTS = ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa")
RESIDUALS = {"self_attention_res": "attn_res_score", "mlp_res": "ffn_res_score", "output_attn_res": "output_res_score"}
LEFT_OUT = ("model.mtp.", "vision_tower.", "mm_projector.")
_LAYER = re.compile(r"^model\.layers\.(\d+)\.(.+)$")


def entries(layout: Layout, config: DecoderConfig, state: State) -> Iterator[Entry]:
    """All tensors of the file. What llama.cpp does not run is left out: prediction blocks (MTP) and the vision part."""
    if config.rope is not None and config.rope.kind == "llama3":
        yield Entry("rope_freqs.weight", lambda: _frequency_divisors(config), wide=True)
    for ours, value in state.items():
        layer = _LAYER.match(ours)
        if layer:
            yield from _of_layer(layout, config, state, ours, int(layer[1]), layer[2], value)
        elif ours in TOP:
            if not (ours == "lm_head.weight" and config.tie_word_embeddings and layout.reuses_embedding):
                yield Entry(TOP[ours], partial(state.__getitem__, ours))
        elif ours == "model.output_attn_res_norm.weight":
            yield _residual("model.output_attn_res", state, RESIDUALS["output_attn_res"])
        elif not ours.startswith(LEFT_OUT) and not ours.endswith("_res_proj.weight"):
            raise ValueError(f"{ours} has no name in GGUF")


def _of_layer(
    layout: Layout, config: DecoderConfig, state: State, ours: str, index: int, part: str, value: Tensor
) -> Iterator[Entry]:
    at = f"blk.{index}"
    stem, _, kind = part.rpartition(".")
    if stem in LATENTS and config.mla is not None and config.mla.norm_eps != config.rms_norm_eps:
        yield Entry(f"{at}.{PLAIN[stem]}.{kind}", lambda: _for_the_other_epsilon(config, stem, value), wide=True)
    elif stem in PLAIN:
        turned = layout.interleaved and stem in ("self_attn.q_proj", "self_attn.k_proj")
        yield Entry(f"{at}.{PLAIN[stem]}.{kind}", lambda: _paired(config, value) if turned else value)
    elif part in WIDE:
        yield Entry(f"{at}.{WIDE[part]}", lambda: value, wide=True)
    elif part == "self_attn.g_proj.weight":
        yield Entry(f"{at}.{'ssm_g' if config.layers[index].mixer == 'kda' else 'attn_gate'}.weight", lambda: value)
    elif part == "self_attn.A_log":
        shape = (-1, 1) if layout.column_decay else (-1,)
        yield Entry(f"{at}.ssm_a", lambda: -value.float().exp().reshape(shape), wide=True)
    elif part == "self_attn.kv_b_proj.weight":
        yield Entry(f"{at}.attn_k_b.weight", lambda: _absorbed(config, value)[0])
        yield Entry(f"{at}.attn_v_b.weight", lambda: _absorbed(config, value)[1])
    elif part == "block_sparse_moe.experts.gate_up":
        yield Entry(f"{at}.ffn_gate_exps.weight", lambda: value.chunk(2, dim=-1)[0].mT)  # [E, I, Z]
        yield Entry(f"{at}.ffn_up_exps.weight", lambda: value.chunk(2, dim=-1)[1].mT)
    elif part == "block_sparse_moe.experts.down":
        yield Entry(f"{at}.ffn_down_exps.weight", lambda: value.mT)  # [E, Z, I]
    elif stem.endswith("_res_norm"):
        name = stem.removesuffix("_norm")
        yield _residual(f"model.layers.{index}.{name}", state, f"{at}.{RESIDUALS[name]}")
    elif not stem.endswith("_res_proj"):
        raise ValueError(f"{ours} has no name in GGUF")


def _residual(ours: str, state: State, theirs: str) -> Entry:
    """The query of an attention residual: only norm times projection matters, formed in fp32."""
    norm, query = state[f"{ours}_norm.weight"], state[f"{ours}_proj.weight"]
    return Entry(f"{theirs}.weight", lambda: norm.float() * query.float().flatten(), wide=True)


def _absorbed(config: DecoderConfig, kv_b: Tensor) -> tuple[Tensor, Tensor]:
    """kv_b [H * (N + V), R] as k_b [H, R, N] and v_b [H, V, R]: R latent, N and V a head's key and value."""
    assert config.mla is not None
    per_head = kv_b.view(config.mla.heads, config.mla.nope_dim + config.mla.value_dim, -1)
    k, v = per_head.split([config.mla.nope_dim, config.mla.value_dim], dim=1)
    return k.mT, v


def _for_the_other_epsilon(config: DecoderConfig, stem: str, matrix: Tensor) -> Tensor:
    """The matrix whose latents, normed with `rms_norm_eps`, come out as this one's do with the latents' own epsilon.

    RMSNorm(c x; c^2 eps) = RMSNorm(x; eps). The key that heads share stands below the latent and is not normed. fp32,
    because c is no power of two.
    """
    assert config.mla is not None
    normed = config.mla.kv_lora_rank if stem == "self_attn.kv_a_proj_with_mqa" else matrix.shape[0]
    scaled = matrix.float().clone()
    scaled[:normed] *= (config.rms_norm_eps / config.mla.norm_eps) ** 0.5
    return scaled


def _paired(config: DecoderConfig, rows: Tensor) -> Tensor:
    """Rows of each head from [first half, second half] of the rotary dims to [pair, pair, ...]."""
    assert config.gqa is not None
    halves = rows.view(-1, 2, config.gqa.head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _frequency_divisors(config: DecoderConfig) -> Tensor:
    """By what Llama 3's stretching divides each rotary frequency [head_dim / 2]."""
    assert config.rope is not None
    plain = config.rope.model_copy(update={"kind": "default"})
    wide, cpu = torch.float64, torch.device("cpu")
    return frequencies(plain, config.rope_dim, wide, cpu)[0] / frequencies(config.rope, config.rope_dim, wide, cpu)[0]
