"""DeepSeek: V3 (MLA with rotary positions, grouped sigmoid routing) and V3.2 (the same with the lightning indexer).

Source: the released config.json files and modelling code of DeepSeek-V3 and DeepSeek-V3.2-Exp; Transformers 5.24.
"""

from __future__ import annotations

from dataclasses import replace

from overland.model.families.codecs import COMMON, dense_first, rope
from overland.model.families.family import ExpertNames, Family

DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    fields={
        **COMMON,
        "mla.heads": "num_attention_heads",
        "mla.q_lora_rank": "q_lora_rank",
        "mla.kv_lora_rank": "kv_lora_rank",
        "mla.nope_dim": "qk_nope_head_dim",
        "mla.rope_dim": "qk_rope_head_dim",
        "mla.value_dim": "v_head_dim",
        "mla.interleaved": "rope_interleave",
        "mla.bias": "attention_bias",
        "moe.experts": "n_routed_experts",
        "moe.top_k": "num_experts_per_tok",
        "moe.shared": "n_shared_experts",
        "moe.width": "moe_intermediate_size",
        "moe.renormalize": "norm_topk_prob",
        "moe.scale": "routed_scaling_factor",
        "moe.groups": "n_group",
        "moe.top_k_groups": "topk_group",
        "mtp_layers": "num_nextn_predict_layers",
    },
    always={"mla.norm_eps": 1e-6, "activation.kind": "swiglu", "moe.score": "sigmoid"},
    defaults={
        "rms_norm_eps": 1e-6,
        "q_lora_rank": None,
        "first_k_dense_replace": 3,
        "rope_interleave": True,
        "attention_bias": False,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 0,
    },
    only={
        "hidden_act": ("silu",),
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "moe_layer_freq": (1,),
    },
    constant={
        "hidden_act": "silu",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
    },
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    codecs=(dense_first("mla"), rope()),
    renames=((r"\.block_sparse_moe\.", ".mlp."),),
    experts=ExpertNames("mlp.experts", "gate_proj", "up_proj", "down_proj"),
)

DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    name="deepseek_v32",
    model_type="deepseek_v32",
    architecture="DeepseekV32ForCausalLM",
    fields={
        **{ours: theirs for ours, theirs in DEEPSEEK_V3.fields.items() if ours != "mla.interleaved"},
        "indexer.heads": "index_n_heads",
        "indexer.head_dim": "index_head_dim",
        "indexer.topk": "index_topk",
    },
    always={**DEEPSEEK_V3.always, "mla.interleaved": True, "indexer.rotate": True, "indexer.norm_eps": 1e-6},
    codecs=(dense_first("dsa"), rope()),
)
