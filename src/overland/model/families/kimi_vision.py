"""The tensors of K3's vision tower and projector: names and shapes as released, from a config.json's `vision_config`.

Source: the released config.json and index; reference/architecture.md §10.
"""

from __future__ import annotations

from typing import Any

K3_VISION: dict[str, Any] = {
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "vt_num_hidden_layers": 27,
    "vt_hidden_size": 1024,
    "vt_intermediate_size": 4096,
    "qkv_hidden_size": 1536,
    "merge_kernel_size": [2, 2],
    "text_hidden_size": 7168,
}


def vision_tensors(vision: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor, all of them bf16 in the release."""
    D, P, I, patch = (vision[f] for f in ("vt_hidden_size", "qkv_hidden_size", "vt_intermediate_size", "patch_size"))
    merged = D * vision["merge_kernel_size"][0] * vision["merge_kernel_size"][1]
    text = vision["text_hidden_size"]
    out: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj.weight": (D, 3, patch, patch),
        "vision_tower.patch_embed.pos_emb.weight": (vision["init_pos_emb_height"], vision["init_pos_emb_width"], D),
    }
    for block in range(vision["vt_num_hidden_layers"]):
        at = f"vision_tower.encoder.blocks.{block}"
        out[f"{at}.norm0.weight"] = out[f"{at}.norm1.weight"] = (D,)
        out[f"{at}.wqkv.weight"], out[f"{at}.wo.weight"] = (3 * P, D), (D, P)
        out[f"{at}.mlp.fc0.weight"], out[f"{at}.mlp.fc1.weight"] = (I, D), (D, I)
    out["vision_tower.encoder.final_layernorm.weight"] = (D,)
    out["mm_projector.proj.0.weight"], out["mm_projector.proj.2.weight"] = (merged, merged), (text, merged)
    out["mm_projector.post_norm.weight"] = (text,)
    return out
