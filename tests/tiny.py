"""A K3-shaped model of ten thousand parameters with every part in it, random enough that each part matters."""

from __future__ import annotations

import torch

from overland.model import Decoder, DecoderConfig

TINY = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "num_experts": 6,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "routed_expert_hidden_size": 8,
    "attn_res_block_size": 2,
    "max_position_embeddings": 96,
    "linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "num_heads": 2, "head_dim": 8},
}


VISION = {
    "patch_size": 2,
    "init_pos_emb_height": 5,
    "init_pos_emb_width": 4,
    "init_pos_emb_time": 3,
    "vt_num_attention_heads": 2,
    "vt_num_hidden_layers": 2,
    "vt_hidden_size": 12,
    "vt_intermediate_size": 20,
    "qkv_hidden_size": 16,
    "merge_kernel_size": [2, 2],
}
MEDIA = 30


def with_vision(text: dict[str, object] | None = None, **changes: object) -> dict[str, object]:
    """config.json of the tiny model with a tiny tower, some fields of vision_config or the text part replaced."""
    vision = {**VISION, **changes}
    return {"text_config": {**TINY, **(text or {})}, "vision_config": vision, "media_placeholder_token_id": MEDIA}


def tiny(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: object) -> Decoder:
    """The model with every parameter drawn, none left at a neutral value that would hide a mistake."""
    return drawn({**TINY, **changes}, dtype, seed)


def drawn(fields: dict[str, object], dtype: torch.dtype = torch.float64, seed: int = 0) -> Decoder:
    """The model of a config.json's content, every parameter drawn."""
    model = Decoder(DecoderConfig.from_dict(fields))
    generator = torch.Generator().manual_seed(seed)

    def normal(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator)

    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.copy_(1 + 0.2 * normal(value))
            elif "conv1d" in name or "_res_proj" in name:
                value.copy_(0.5 * normal(value))
            elif value.ndim == 1 or "embed" in name:  # one dimension: A_log and dt_bias
                value.copy_(normal(value))
            else:
                fan_in = value.shape[1] if ".experts." in name or value.ndim == 2 else value.shape[-1]
                value.copy_(1.5 * normal(value) * fan_in**-0.5)
        saved = model.state_dict().keys()  # a selection bias that the family's files have no place for stays zero
        for name, buffer in model.named_buffers():
            if name in saved:
                buffer.copy_(0.1 * normal(buffer))
    return model.to(dtype)


def random_ids(*shape: int, seed: int = 0, vocab: int = 32) -> torch.Tensor:
    """Token ids from a seed."""
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))
