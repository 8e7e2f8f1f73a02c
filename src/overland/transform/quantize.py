"""MXFP4 for the routed experts: in a model's memory, or from one model folder to another in K3's released layout.

Only the routed experts are quantised: they are 98% of a K3's weights, and attention, router, latent projections and
shared experts keep their dtype. Blocks run along an expert's input dimension: dim 1 of the stacked tensors
[E, in, out], the last dimension of a released matrix [out, in].
Source: the released config.json; reference/architecture.md §1 and §12, reference/serving.md §3.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from overland import kernels
from overland.errors import OverlandError, UsageError
from overland.model import Decoder, DecoderConfig, load_model
from overland.runs import atomic_write, explain_disk_errors, read_json, replace_folder, write_json
from overland.transform.quant_report import QuantReport, TensorError

# The release names attention, shared experts, dense feed-forward, head and vision; routers, latent and residual
# projections are not quantised there either, and naming them keeps readers that go by this list from looking for them.
IGNORED = (
    r"re:.*self_attn.*",
    r"re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    r"re:.*lm_head.*",
    r"re:.*vision_tower.*",
    r"re:.*mm_projector.*",
    r"re:.*block_sparse_moe\.gate$",
    r"re:.*routed_expert_(down|up)_proj.*",
    r"re:.*res_proj.*",
)
_EXPERT = re.compile(r"(?:language_model\.)?(?P<experts>.*\.experts)\.\d+\.w(?P<matrix>[123])\.weight")
_STACKED = {"1": "gate_up", "2": "down", "3": "gate_up"}
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf")  # of this or another kind


def quantize_experts(model: Decoder, rule: str = "even") -> QuantReport:
    """Replace every routed expert's weight in `model` by the value of its MXFP4 form, in place.

    The weights keep dtype and shape and become exactly representable: what the written folder of quantize_folder loads
    as. Raises UsageError for widths that 32 does not divide or an unknown rule and OverlandError naming a tensor that
    is not finite, before anything is changed.
    """
    check_widths(model.config, "config.json")
    stacked = {
        name: weight
        for name, weight in model.named_parameters()
        if name.endswith((".experts.gate_up", ".experts.down"))
    }
    rounded: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, weight in stacked.items():
            rounded[name] = _rounded(name, weight, rule, dim=1)
        errors = tuple(TensorError.between(name, weight, rounded[name]) for name, weight in stacked.items())
        report = QuantReport(rule, errors, sum(weight.nbytes for weight in stacked.values()))
        for name, weight in stacked.items():
            weight.copy_(rounded[name])
    return report


def quantize_folder(src: str | os.PathLike[str], dst: str | os.PathLike[str], rule: str = "even") -> QuantReport:
    """Write model folder `src` to `dst` with packed routed experts, in K3's released layout.

    Each experts.{e}.w{1,2,3}.weight [out, in] becomes .weight_packed [out, in/2] and .weight_scale [out, in/32], both
    uint8; all other tensors, the tokenizer, the template, the licences and the lineage are carried along as they are,
    and config.json gains quantization_config. `dst` appears whole or not at all.

    Raises UsageError for a `dst` that holds something, a `src` that is not a model folder or quantised already, and
    widths that 32 does not divide; BrokenFileError naming what is wrong in `src`.
    """
    src, dst = Path(src), Path(dst)
    if dst.exists() and not (dst.is_dir() and not any(dst.iterdir())):
        raise UsageError(f"DST = '{dst}' exists and is not an empty folder; name a new one")
    if not (src / "config.json").is_file():
        raise UsageError(f"SRC = '{src}' is not a model folder: it has no config.json")
    load_model(src)  # checks the config, and every tensor's name, shape and values against it
    config = _quantized_config(read_json(src / "config.json"), rule, src / "config.json")
    tensors, report = _pack(src / "model.safetensors", rule)

    dst = dst.resolve()
    temporary = dst.with_name(f".{dst.name}.{os.getpid()}.tmp")
    try:
        with explain_disk_errors(dst):
            temporary.mkdir(parents=True)
            _copy_companions(src, temporary)
        atomic_write(temporary / "model.safetensors", save(tensors, metadata={"format": "pt"}))
        write_json(temporary / "config.json", config)
        replace_folder(temporary, dst)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return report


def check_widths(config: DecoderConfig, source: str) -> None:
    """Raises UsageError naming a width that blocks run along and 32 does not divide, or where no layer has experts."""
    if config.moe is None or not any(config.is_moe(layer) for layer in range(config.num_hidden_layers)):
        dense = f"first_k_dense_replace = {config.num_hidden_layers}"
        raise UsageError(f"{source}: {dense} leaves no layer with routed experts; there is nothing to quantise")
    inner = (
        ("routed_expert_hidden_size", config.moe.latent) if config.moe.latent else ("hidden_size", config.hidden_size)
    )
    for field, width in (inner, ("moe_intermediate_size", config.moe.width)):
        if width % kernels.MXFP4_BLOCK:
            up = -(-width // kernels.MXFP4_BLOCK) * kernels.MXFP4_BLOCK
            raise UsageError(
                f"{source}: {field} = {width} is not a multiple of {kernels.MXFP4_BLOCK}, the block of MXFP4; "
                f"the next one is {up}"
            )


def _quantized_config(config: dict[str, Any], rule: str, source: Path) -> dict[str, Any]:
    """config.json's content with quantization_config beside the text decoder's fields, which are checked first."""
    text = config.get("text_config", config)
    if "quantization_config" in config or "quantization_config" in text:
        raise UsageError(
            f"{source}: SRC is quantised already (quantization_config is set); start from the unquantised one"
        )
    check_widths(DecoderConfig.from_dict(text, source=str(source)), str(source))
    if rule not in kernels.MXFP4_CHOICES:
        raise UsageError(f"MXFP4 scale rule = {rule!r} is unknown; valid: {', '.join(kernels.MXFP4_CHOICES)}")
    weights = {
        "num_bits": 4,
        "type": "float",
        "strategy": "group",
        "group_size": kernels.MXFP4_BLOCK,
        "symmetric": True,
        "dynamic": False,
        "observer": "minmax",
        "scale_dtype": "torch.uint8",
    }
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": list(IGNORED),
        "scale_rule": rule,  # not a field of the format; readers pass over it, people want to know
    }
    if text is config:
        return {**config, "quantization_config": quantization}
    return {**config, "text_config": {**text, "quantization_config": quantization}}


def _pack(weights: Path, rule: str) -> tuple[dict[str, Tensor], QuantReport]:
    """The released tensors of `weights` with packed experts, and the errors summed over each layer's experts."""
    out: dict[str, Tensor] = {}
    errors: dict[str, TensorError] = {}
    bytes_before = 0
    with safe_open(weights, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            weight = file.get_tensor(name)
            expert = _EXPERT.fullmatch(name)
            if expert is None:
                out[name] = weight
                continue
            packed, scales = kernels.mxfp4_encode(weight, rule)
            out[f"{name}_packed"], out[f"{name}_scale"] = packed, scales
            stacked = f"{expert['experts']}.{_STACKED[expert['matrix']]}"
            error = TensorError.between(stacked, weight, kernels.mxfp4_decode(packed, scales))
            errors[stacked] = errors[stacked] + error if stacked in errors else error
            bytes_before += weight.nbytes
    return out, QuantReport(rule, tuple(errors.values()), bytes_before)


def _rounded(name: str, weight: Tensor, rule: str, dim: int) -> Tensor:
    if not torch.isfinite(weight).all():
        raise OverlandError(f"'{name}' holds weights that are not finite; a block with one cannot be quantised")
    return kernels.mxfp4_round(weight, dim, rule)


def _copy_companions(src: Path, dst: Path) -> None:
    """Everything that goes with a model but its weights and config: tokenizer, template, licences, lineage."""
    for entry in sorted(src.iterdir()):
        if entry.is_dir() and entry.name.upper().startswith("LICEN"):
            shutil.copytree(entry, dst / entry.name)
        elif entry.is_file() and not entry.name.startswith(".") and not entry.name.endswith(_WEIGHTS):
            shutil.copy2(entry, dst / entry.name)  # config.json is written over
