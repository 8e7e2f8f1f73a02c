"""The blocks that models are made of: each function is one kind, its weights as the released checkpoints have them.

Held against Transformers' own classes on the meta device, parameter for parameter, in tests/parallel.
"""

from __future__ import annotations

from overland.parallel.planner.architecture import Block, Weight


def _vector(name: str, *shape: int) -> Weight:
    return Weight(name, shape, matmul=False)


def gqa(
    D: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    window: int = 0,
    bias: bool = False,
    qk_norm: bool = False,
    sinks: bool = False,
    output_gate: bool = False,
) -> Block:
    """Grouped-query attention with its input norm; `output_gate`: q_proj gives a gate on the output too."""
    P, Q = heads * head_dim, kv_heads * head_dim
    weights = [
        _vector("input_layernorm", D),
        Weight("q_proj", (2 * P if output_gate else P, D), split="column"),
        Weight("k_proj", (Q, D), split="column"),
        Weight("v_proj", (Q, D), split="column"),
        Weight("o_proj", (D, P), split="row"),
    ]
    if bias:
        weights += [_vector("q_bias", P), _vector("k_bias", Q), _vector("v_bias", Q), _vector("o_bias", D)]
    if qk_norm:
        weights += [_vector("q_norm", head_dim), _vector("k_norm", head_dim)]
    if sinks:
        weights += [_vector("sinks", heads)]
    return Block(
        "GQA",
        tuple(weights),
        core=4.0 * P,
        window=window,
        saved=2 * D + 2 * P + 2 * Q + (P + Q if qk_norm else 0),
        cheap=D + (P + Q if qk_norm else 0),
        kv=2 * Q,
        heads=heads,
    )


def mla(
    D: int, heads: int, q_lora: int, kv_lora: int, nope: int, rope: int, v_dim: int, *, gate: bool = False
) -> Block:
    """Multi-head latent attention with its input norm; `gate`: a sigmoid gate on the output (K3)."""
    qk = nope + rope
    weights = [
        _vector("input_layernorm", D),
        Weight("q_a_proj", (q_lora, D)),
        _vector("q_a_layernorm", q_lora),
        Weight("q_b_proj", (heads * qk, q_lora), split="column"),
        Weight("kv_a_proj_with_mqa", (kv_lora + rope, D)),
        _vector("kv_a_layernorm", kv_lora),
        Weight("kv_b_proj", (heads * (nope + v_dim), kv_lora), split="column"),
        Weight("o_proj", (D, heads * v_dim), split="row"),
    ]
    if gate:
        weights.append(Weight("g_proj", (heads * v_dim, D), split="column"))
    up = heads * (2 * qk + v_dim)
    return Block(
        "MLA",
        tuple(weights),
        core=2.0 * heads * (qk + v_dim),
        saved=2 * D + 2 * (q_lora + kv_lora) + rope + up + heads * v_dim * (3 if gate else 1),
        cheap=D + q_lora + kv_lora + up,
        kv=heads * (qk + v_dim),
        heads=heads,
    )


def kda(D: int, heads: int, head_dim: int, taps: int, chunk: int = 64) -> Block:
    """Kimi Delta Attention with its input norm; the core is counted in its chunked form."""
    P = heads * head_dim
    weights = [
        _vector("input_layernorm", D),
        *(Weight(f"{name}_proj", (P, D), split="column") for name in "qkvg"),
        *(Weight(f"{name}_conv1d", (P, 1, taps), matmul=False) for name in "qkv"),
        Weight("f_a_proj", (head_dim, D)),
        Weight("f_b_proj", (P, head_dim), split="column"),
        Weight("b_proj", (heads, D), split="column"),
        _vector("A_log", heads),
        _vector("dt_bias", P),
        _vector("o_norm", head_dim),
        Weight("o_proj", (D, P), split="row"),
    ]
    # A chunk's Gram matrices and triangular solve (4 products of chunk x K or V), then read and update of the state.
    core = heads * (2 * chunk * 4 * head_dim + 3 * 2 * head_dim * head_dim)
    return Block(
        "KDA",
        tuple(weights),
        core_per_token=core,
        saved=2 * D + 11 * P,
        cheap=D + 5 * P,
        kv=0,
        heads=heads,
    )


def gated_delta(D: int, key_heads: int, heads: int, key_dim: int, value_dim: int, taps: int, chunk: int = 64) -> Block:
    """Gated DeltaNet with its input norm (Qwen3-Next)."""
    K, V = key_heads * key_dim, heads * value_dim
    weights = (
        _vector("input_layernorm", D),
        Weight("in_proj_qkvz", (2 * K + 2 * V, D), split="column"),
        Weight("in_proj_ba", (2 * heads, D), split="column"),
        Weight("conv1d", (2 * K + V, 1, taps), matmul=False),
        _vector("A_log", heads),
        _vector("dt_bias", heads),
        _vector("gated_norm", value_dim),
        Weight("out_proj", (D, V), split="row"),
    )
    core = heads * (2 * chunk * (2 * key_dim + 2 * value_dim) + 3 * 2 * key_dim * value_dim)
    saved, cheap = 2 * D + 2 * (2 * K + V) + 3 * V, D + 2 * K + 2 * V
    return Block("gated delta", weights, core_per_token=core, saved=saved, cheap=cheap, heads=key_heads)


def mamba2(D: int, heads: int, head_dim: int, state: int, groups: int, taps: int) -> Block:
    """Mamba-2 with its input norm. Core FLOPs as Megatron-LM counts the selective scan (7 a channel and state)."""
    inner = heads * head_dim
    conv = inner + 2 * groups * state
    weights = (
        _vector("norm", D),
        Weight("in_proj", (inner + conv + heads, D), split="column"),
        Weight("conv1d", (conv, 1, taps), matmul=False),
        _vector("conv1d_bias", conv),
        _vector("A_log", heads),
        _vector("D", heads),
        _vector("dt_bias", heads),
        _vector("gated_norm", inner),
        Weight("out_proj", (D, inner), split="row"),
    )
    return Block(
        "Mamba-2",
        weights,
        core_per_token=7.0 * inner * state,
        saved=2 * D + 2 * (inner + conv) + 3 * inner,
        cheap=D + inner + conv,
        kv=0,
        heads=heads,
    )


def swiglu(D: int, width: int) -> Block:
    """A gated feed-forward with its input norm."""
    weights = (
        _vector("post_attention_layernorm", D),
        Weight("gate_proj", (width, D), split="column"),
        Weight("up_proj", (width, D), split="column"),
        Weight("down_proj", (D, width), split="row"),
    )
    return Block("dense", weights, saved=2 * D + 3 * width, cheap=D + width)


def moe(
    D: int,
    experts: int,
    top_k: int,
    width: int,
    *,
    shared: int = 0,
    latent: int = 0,
    latent_norm: bool = False,
    gated: bool = True,
    router_bias: bool = False,
    expert_bias: bool = False,
    shared_gate: bool = False,
) -> Block:
    """A mixture of experts with its input norm; `shared`: the shared experts' width, `latent`: K3's narrow one."""
    Z, fold = latent or D, 2 if gated else 1
    use = top_k / experts
    weights = [
        _vector("post_attention_layernorm", D),
        Weight("router", (experts, D)),
        Weight("experts_up", (experts, Z, fold * width), "expert", use=use),
        Weight("experts_down", (experts, width, Z), "expert", use=use),
    ]
    if router_bias:
        weights.append(_vector("router_bias", experts))
    if expert_bias:
        weights += [
            Weight("experts_up_bias", (experts, fold * width), "expert", use=use, matmul=False),
            Weight("experts_down_bias", (experts, Z), "expert", use=use, matmul=False),
        ]
    if latent:
        weights += [Weight("latent_down", (Z, D)), Weight("latent_up", (D, Z))]
    if latent_norm:
        weights.append(_vector("latent_norm", Z))
    if shared:
        projections = ("shared_gate", "shared_up") if gated else ("shared_up",)
        weights += [Weight(name, (shared, D), split="column") for name in projections]
        weights.append(Weight("shared_down", (D, shared), split="row"))
    if shared_gate:
        weights.append(Weight("shared_weighing", (1, D)))
    routed = top_k * (2 * Z + (fold + 1) * width)
    return Block(
        "MoE",
        tuple(weights),
        saved=2 * D + experts + routed + (fold + 1) * shared + (2 * Z if latent else 0),
        cheap=D + top_k * (Z + width) + shared,
        spread=routed,
        routed=Z,
        top_k=top_k,
        experts=experts,
    )


def depth_mixes(D: int) -> Block:
    """K3's attention residuals of one layer: two depth queries with their norms."""
    sublayers = ("self_attention", "mlp")
    norms = [_vector(f"{name}_res_norm", D) for name in sublayers]
    return Block("depth mix", (*norms, *(_vector(f"{name}_res_proj", 1, D) for name in sublayers)))


def mtp_projection(D: int) -> Block:
    """What a multi-token-prediction module puts before its own layer: two norms and a product of both inputs."""
    return Block("MTP", (_vector("enorm", D), _vector("hnorm", D), Weight("eh_proj", (D, 2 * D))), saved=4 * D)
