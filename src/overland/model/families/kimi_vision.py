"""K3's config.json around the text part: the vision tower and projector, and what stands beside them.

Source: the released config.json; reference/architecture.md §1 and §10.
"""

from __future__ import annotations

from overland.model.config import DecoderConfig
from overland.model.families.family import Around, Codec, Fields

VISION_FIELDS = {
    "vision.patch": "vision_config.patch_size",
    "vision.grid_height": "vision_config.init_pos_emb_height",
    "vision.grid_width": "vision_config.init_pos_emb_width",
    "vision.frames": "vision_config.init_pos_emb_time",
    "vision.layers": "vision_config.vt_num_hidden_layers",
    "vision.width": "vision_config.vt_hidden_size",
    "vision.mlp_width": "vision_config.vt_intermediate_size",
    "vision.heads": "vision_config.vt_num_attention_heads",
    "vision.merge": "vision_config.merge_kernel_size",
    "vision.norm_eps": "vision_config.vt_norm_eps",
    "vision.projector_eps": "vision_config.projector_ln_eps",
}

_FIXED: Fields = {
    "pos_emb_type": "divided_fixed",
    "pos_emb_interpolation_mode": "bilinear",
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmergerv2",
    "projector_hidden_act": "gelu",
    "norm_type": "rmsnorm",
    "attn_bias": False,
    "linear_bias": False,
    "patch_embed_proj_bias": False,
    "mlp_type": "mlp2",
    "activation_func": "gelu_pytorch_tanh",
}
VISION_CONSTANT: Fields = {f"vision_config.{name}": value for name, value in _FIXED.items()}
VISION_ONLY: Fields = {name: (value,) for name, value in VISION_CONSTANT.items()}
_WIDTHS = {"mm_hidden_size", "text_hidden_size", "qkv_hidden_size"}


def _read(theirs: Fields) -> Fields:
    vision = theirs.get("vision_config")
    if vision is None:
        return {}
    for name, same in (("mm_hidden_size", vision["vt_hidden_size"]), ("text_hidden_size", theirs["hidden_size"])):
        if vision.get(name, same) != same:
            raise ValueError(f"{name} = {vision[name]!r}; valid: {same}, the width that it stands for")
    read = {name.split(".")[1] for name in (*VISION_FIELDS.values(), *VISION_CONSTANT)} | _WIDTHS
    return {
        "vision.qkv_width": vision.get("qkv_hidden_size") or vision["vt_hidden_size"],
        "vision.media_token_id": theirs["media_placeholder_token_id"],
        "vision.extra": {name: value for name, value in vision.items() if name not in read},
    }


def _write(config: DecoderConfig) -> Fields:
    vision = config.vision
    if vision is None:
        return {}
    return {
        "media_placeholder_token_id": vision.media_token_id,
        "vision_config.qkv_hidden_size": vision.qkv_width,
        "vision_config.mm_hidden_size": vision.width,
        "vision_config.text_hidden_size": config.hidden_size,
        "vision_config.merge_kernel_size": list(vision.merge),
        **{f"vision_config.{name}": value for name, value in vision.extra.items()},
    }


VISION_CODEC = Codec(
    ("vision_config", "media_placeholder_token_id"),
    _read,
    _write,
    {"vision.qkv_width": "vision_config.qkv_hidden_size", "vision.media_token_id": "media_placeholder_token_id"},
)

K3_AROUND = Around(
    model_type="kimi_k3",
    architecture="KimiK3ForConditionalGeneration",
    sparse_architecture="KimiK31ForConditionalGeneration",
    beside=("vision_config", "media_placeholder_token_id"),
    fresh={"image_placeholder": "<|kimi_image_placeholder|>", "ignore_index": -100},
)

K3_MEDIA_TOKEN = 163605
K3_VISION: Fields = {
    **_FIXED,
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "init_pos_emb_time": 4,
    "vt_num_attention_heads": 12,
    "vt_num_hidden_layers": 27,
    "vt_hidden_size": 1024,
    "vt_intermediate_size": 4096,
    "qkv_hidden_size": 1536,
    "merge_kernel_size": [2, 2],
    "mm_hidden_size": 1024,
    "projector_ln_eps": 1e-5,
    "text_hidden_size": 7168,
}
