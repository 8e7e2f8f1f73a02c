"""What is applied to a model from outside: MXFP4 quantisation of the routed experts."""

from overland.transform.quant_report import QuantReport, TensorError
from overland.transform.quantize import quantize_experts, quantize_folder

__all__ = ["QuantReport", "TensorError", "quantize_experts", "quantize_folder"]
