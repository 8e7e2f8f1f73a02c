"""The hot loops, each behind one function with a plain reference beside it."""

from overland.kernels.choice import kernel_choice
from overland.kernels.experts import grouped_product, grouped_product_reference
from overland.kernels.kda import kda, kda_chunk, kda_recurrent
from overland.kernels.short_conv import short_conv
from overland.kernels.situ import situ_glu, situ_glu_reference

__all__ = [
    "grouped_product",
    "grouped_product_reference",
    "kda",
    "kda_chunk",
    "kda_recurrent",
    "kernel_choice",
    "short_conv",
    "situ_glu",
    "situ_glu_reference",
]
