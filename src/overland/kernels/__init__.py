"""The hot loops, each behind one function with a plain reference beside it.

How to add one, say `dots`: `dots.py` holds the formula, the public function and `dots_reference`. Its compiled form is
`native/dots.cpp`, templates over float and double that know pointers and sizes and export themselves with `BOTH`
(native/common.h; situ.cpp is the shortest example). `dots.py` declares `_native = Compiled("dots", dots_forward="pp")`
and asks `_native.runs(x)` which form to take; a gradient is an autograd.Function that calls forward and backward. The
build, its cache and the fallback follow from the file's place. Tests hold all forms together, the gradient also against
finite differences in float64.
"""

from overland.kernels.choice import kernel_choice
from overland.kernels.compiled import compiled_state
from overland.kernels.decode_ffn import (
    MOST_GROUPS,
    Caps,
    ExpertsWeights,
    GLUWeights,
    Routes,
    dense_step,
    experts_step,
    steps_ffn,
)
from overland.kernels.decode_gqa import (
    GQACaches,
    GQALayerWeights,
    Matrix,
    Packed,
    bf16_linear,
    gqa_stack,
    multiplies_bf16,
    steps_gqa,
)
from overland.kernels.decode_kda import KDAWeights, kda_step, steps_kda
from overland.kernels.decode_mla import MLAWeights, mla_step, steps_mla
from overland.kernels.depth_mix import depth_mix, depth_mix_reference
from overland.kernels.draw import draw, draws
from overland.kernels.experts import grouped_product, grouped_product_reference
from overland.kernels.held import Held
from overland.kernels.kda import kda, kda_chunk, kda_recurrent
from overland.kernels.latent_attention import attend_latents, attend_latents_reference
from overland.kernels.log_decay import log_decay, log_decay_reference
from overland.kernels.mxfp4 import (
    MXFP4_BLOCK,
    MXFP4_CHOICES,
    MXFP4_RULES,
    MXFP4_SEARCH,
    MXFP4_VALUES,
    mxfp4_decode,
    mxfp4_dequantize,
    mxfp4_dequantize_reference,
    mxfp4_encode,
    mxfp4_pack,
    mxfp4_quantize,
    mxfp4_quantize_reference,
    mxfp4_round,
    mxfp4_unpack,
)
from overland.kernels.mxfp4_product import (
    mxfp4_grouped_product,
    mxfp4_grouped_product_reference,
    mxfp4_product,
)
from overland.kernels.norm import rms_norm, rms_norm_reference
from overland.kernels.residual import Reading
from overland.kernels.routing import (
    choose_experts,
    choose_experts_reference,
    margin_counts,
    rows_by_expert,
    weighted_rows,
)
from overland.kernels.selected_attention import attend_selected, attend_selected_reference
from overland.kernels.short_conv import short_conv, short_conv_reference
from overland.kernels.situ import situ_glu, situ_glu_reference
from overland.kernels.top_keys import (
    index_scores,
    select,
    selected_ids,
    selected_mask,
    slices,
    top_keys,
    top_keys_reference,
)

__all__ = [
    "MOST_GROUPS",
    "MXFP4_BLOCK",
    "MXFP4_CHOICES",
    "MXFP4_RULES",
    "MXFP4_SEARCH",
    "MXFP4_VALUES",
    "Caps",
    "ExpertsWeights",
    "GLUWeights",
    "GQACaches",
    "GQALayerWeights",
    "Held",
    "KDAWeights",
    "MLAWeights",
    "Matrix",
    "Packed",
    "Reading",
    "Routes",
    "attend_latents",
    "attend_latents_reference",
    "attend_selected",
    "attend_selected_reference",
    "bf16_linear",
    "choose_experts",
    "choose_experts_reference",
    "compiled_state",
    "dense_step",
    "depth_mix",
    "depth_mix_reference",
    "draw",
    "draws",
    "experts_step",
    "gqa_stack",
    "grouped_product",
    "grouped_product_reference",
    "index_scores",
    "kda",
    "kda_chunk",
    "kda_recurrent",
    "kda_step",
    "kernel_choice",
    "log_decay",
    "log_decay_reference",
    "margin_counts",
    "mla_step",
    "multiplies_bf16",
    "mxfp4_decode",
    "mxfp4_dequantize",
    "mxfp4_dequantize_reference",
    "mxfp4_encode",
    "mxfp4_grouped_product",
    "mxfp4_grouped_product_reference",
    "mxfp4_pack",
    "mxfp4_product",
    "mxfp4_quantize",
    "mxfp4_quantize_reference",
    "mxfp4_round",
    "mxfp4_unpack",
    "rms_norm",
    "rms_norm_reference",
    "rows_by_expert",
    "select",
    "selected_ids",
    "selected_mask",
    "short_conv",
    "short_conv_reference",
    "situ_glu",
    "situ_glu_reference",
    "slices",
    "steps_ffn",
    "steps_gqa",
    "steps_kda",
    "steps_mla",
    "top_keys",
    "top_keys_reference",
    "weighted_rows",
]
