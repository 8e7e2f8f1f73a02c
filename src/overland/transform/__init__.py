"""What is applied to a model from outside: MXFP4 quantisation, training on quantised values, LoRA, checkpointing."""

from overland.transform.activation_checkpointing import checkpoint_layers, uncheckpoint_layers
from overland.transform.lora import LoRASection, apply_lora, load_lora, merge_lora, remove_lora, save_lora, unmerge_lora
from overland.transform.packed import load_packed, pack, packed_bytes
from overland.transform.qat import apply_qat, fake_quantized, remove_qat
from overland.transform.quant_report import QuantReport, TensorError
from overland.transform.quantize import quantize_experts, quantize_folder, quantize_model

__all__ = [
    "LoRASection",
    "QuantReport",
    "TensorError",
    "apply_lora",
    "apply_qat",
    "checkpoint_layers",
    "fake_quantized",
    "load_lora",
    "load_packed",
    "merge_lora",
    "pack",
    "packed_bytes",
    "quantize_experts",
    "quantize_folder",
    "quantize_model",
    "remove_lora",
    "remove_qat",
    "save_lora",
    "uncheckpoint_layers",
    "unmerge_lora",
]
