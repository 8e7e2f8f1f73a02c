"""When all layers of a decoder run as one kernel: dense GQA layers in bf16, behind a cache, without gradients.

Every layer must be what its classes say: grouped-query attention over all tokens, without biases and sinks, SwiGLU, the
standard residual; nothing hooked, nothing replaced but matrices by packed ones. Everything else runs its own forwards.

Shapes: B rows, T new tokens, M of them real, D model, K head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overland import kernels
from overland.model.cache import Cache, GQACache, with_room
from overland.model.config import DecoderConfig
from overland.model.context import Context
from overland.model.feed_forward import FeedForward
from overland.model.gqa import GQA
from overland.model.layer import DecoderLayer
from overland.model.norm import RMSNorm
from overland.model.stepping import step_matrix, untouched

MOST_TOKENS = 1024  # of one call: beyond that, and far behind a long prompt, torch's blocked attention is quicker


def has_plain_gqa_layers(config: DecoderConfig) -> bool:
    """Whether the layers are of the kind that the kernel knows."""
    gqa = config.gqa
    return (
        gqa is not None
        and not (gqa.bias or gqa.output_bias or gqa.sinks or config.mlp_bias)
        and config.attn_res_block is None
        and config.activation.kind == "swiglu"
        and (config.rope is None or config.rope_dim == gqa.head_dim)
        and all(part.mixer == "gqa" and part.window is None for part in config.layers)
        and not any(config.is_moe(index) for index in range(config.num_hidden_layers))
    )


def run_stack(
    layers: nn.ModuleList, norm: RMSNorm, config: DecoderConfig, s_BTD: Tensor, context: Context, cache: Cache
) -> tuple[Tensor, Tensor] | None:
    """(raw, normed) [B, T, D] as the layers' forwards give them, zero at padding; None where the kernel cannot be used.

    The layers' caches are extended; their lengths stay the caller's to advance.
    """
    B, T, _ = s_BTD.shape
    packing, lengths = context.packing, context.lengths_B
    if (
        s_BTD.dtype != torch.bfloat16
        or not 0 < B * T <= MOST_TOKENS
        or lengths is None
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or (packing is not None and packing.documents is not None)
    ):
        return None
    assert config.gqa is not None
    heads = (config.gqa.heads, config.gqa.kv_heads, config.gqa.head_dim)
    weights = [_weights(layer) for layer in layers]
    known = [w for w in weights if w is not None]
    if len(known) < len(weights) or not untouched(norm, RMSNorm) or not kernels.steps_gqa(s_BTD, known, heads):
        return None
    caches = _with_room(cache, lengths, T)
    if caches is None:
        return None
    at_BT = lengths[:, None] + torch.arange(T) if T > 1 else lengths[:, None]
    row_BT = torch.arange(B)[:, None].expand(B, T)
    real = context.valid_BT

    def chosen(x: Tensor) -> Tensor:
        return (x.flatten(0, 1) if real is None else x[real]).contiguous()

    rotary = context.rotary
    angles = None
    if rotary is not None:
        angles = (chosen(rotary.cos.expand(B, T, -1)).float(), chosen(rotary.sin.expand(B, T, -1)).float())
    where = (chosen(row_BT), chosen(at_BT))
    scale, eps = heads[2] ** -0.5, config.rms_norm_eps
    normed, raw = kernels.gqa_stack(chosen(s_BTD), known, norm.weight, caches, *where, angles, heads, scale, eps)
    if real is None:
        return raw.view_as(s_BTD), normed.view_as(s_BTD)
    out = s_BTD.new_zeros(2, *s_BTD.shape)
    out[0, real], out[1, real] = raw, normed
    return out[0], out[1]


def _weights(layer: nn.Module) -> kernels.GQALayerWeights | None:
    """What the kernel reads of one layer; None where a part was replaced or is watched."""
    assert isinstance(layer, DecoderLayer)
    mixer, mlp = layer._modules["self_attn"], layer._modules["mlp"]
    if not (untouched(layer, DecoderLayer) and untouched(mixer, GQA) and untouched(mlp, FeedForward)):
        return None
    assert mixer is not None
    assert mlp is not None
    matrices = [step_matrix(mixer._modules[name]) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    matrices += [step_matrix(mlp._modules[name]) for name in ("gate_proj", "up_proj", "down_proj")]
    modules = [layer._modules["input_layernorm"], layer._modules["post_attention_layernorm"]]
    modules += [mixer._modules.get("q_norm"), mixer._modules.get("k_norm")]
    if not all(module is None or untouched(module, RMSNorm) for module in modules):
        return None
    known = [matrix for matrix in matrices if matrix is not None]
    if len(known) < len(matrices):
        return None
    before, after, q_norm, k_norm = [None if module is None else module._parameters["weight"] for module in modules]
    assert before is not None
    assert after is not None
    q, k, v, o, gate, up, down = known
    return kernels.GQALayerWeights(q, k, v, o, gate, up, down, before, q_norm, k_norm, after)


def _with_room(cache: Cache, lengths_B: Tensor, tokens: int) -> kernels.GQACaches | None:
    """The layers' keys and values with room for the new tokens; None where they do not lie as the kernel wants them."""
    most = int(lengths_B.max()) + tokens
    keys, values = [], []
    for layer in cache.layers:
        assert isinstance(layer, GQACache)
        if layer.keys.shape[1] < most:
            layer.keys = with_room(layer.keys, lengths_B, tokens)
            layer.values = with_room(layer.values, lengths_B, tokens)
        keys.append(layer.keys)
        values.append(layer.values)
    shape, stride, dtype = keys[0].shape, keys[0].stride(), keys[0].dtype
    rows = shape[2] * shape[3]
    if dtype != torch.bfloat16 or stride[1:] != (rows, shape[3], 1):
        return None
    if any(x.stride() != stride or x.shape != shape or x.dtype != dtype for x in (*keys, *values)):
        return None
    return kernels.GQACaches(keys, values)
