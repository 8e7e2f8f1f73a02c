"""What is applied to a model from outside: MXFP4 quantisation of the routed experts, LoRA."""

from overland.transform.lora import LoRASection, apply_lora, load_lora, merge_lora, remove_lora, save_lora, unmerge_lora
from overland.transform.quant_report import QuantReport, TensorError
from overland.transform.quantize import quantize_experts, quantize_folder

__all__ = [
    "LoRASection",
    "QuantReport",
    "TensorError",
    "apply_lora",
    "load_lora",
    "merge_lora",
    "quantize_experts",
    "quantize_folder",
    "remove_lora",
    "save_lora",
    "unmerge_lora",
]
