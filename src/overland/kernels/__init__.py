"""The hot loops, each behind one function with a plain reference beside it."""

from overland.kernels.choice import kernel_choice
from overland.kernels.experts import grouped_product, grouped_product_reference
from overland.kernels.kda import kda, kda_chunk, kda_recurrent
from overland.kernels.mxfp4 import (
    MXFP4_BLOCK,
    MXFP4_RULES,
    MXFP4_VALUES,
    mxfp4_dequantize,
    mxfp4_dequantize_reference,
    mxfp4_pack,
    mxfp4_quantize,
    mxfp4_quantize_reference,
    mxfp4_round,
    mxfp4_unpack,
)
from overland.kernels.short_conv import short_conv
from overland.kernels.situ import situ_glu, situ_glu_reference

__all__ = [
    "MXFP4_BLOCK",
    "MXFP4_RULES",
    "MXFP4_VALUES",
    "grouped_product",
    "grouped_product_reference",
    "kda",
    "kda_chunk",
    "kda_recurrent",
    "kernel_choice",
    "mxfp4_dequantize",
    "mxfp4_dequantize_reference",
    "mxfp4_pack",
    "mxfp4_quantize",
    "mxfp4_quantize_reference",
    "mxfp4_round",
    "mxfp4_unpack",
    "short_conv",
    "situ_glu",
    "situ_glu_reference",
]
