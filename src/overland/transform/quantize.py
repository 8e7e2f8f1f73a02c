"""MXFP4 for a model's matrices: in memory, or from one model folder to another in its family's released layout.

K3's choice, and the default, is the routed experts: they are 98% of a K3's weights, and attention, router, latent
projections and shared experts keep their dtype. Any Linear can be named. Blocks run along a matrix's input dimension:
dim 1 of the stacked tensors [E, in, out], the last dimension of a released matrix [out, in].
Source: the released config.json files of Kimi-K3 and gpt-oss; reference/architecture.md §1 and §12, serving.md §3.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from overland import kernels
from overland.errors import BrokenFileError, OverlandError, UsageError
from overland.model import Decoder, DecoderConfig
from overland.model.checkpoint import INDEX, check_folder, without_memory
from overland.model.convert import check_new, copy_companions, new_folder
from overland.model.families import FAMILIES, Piece
from overland.model.families.tensors import TEXT
from overland.model.packed import Pair
from overland.runs import atomic_write, read_json, write_json
from overland.transform.quant_report import QuantReport, TensorError
from overland.transform.targets import EXPERTS, chosen_linears

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


def quantize_experts(model: Decoder, rule: str = "even") -> QuantReport:
    """quantize_model for the routed experts."""
    return quantize_model(model, (EXPERTS,), rule)


def quantize_model(model: Decoder, targets: Sequence[str] = (EXPERTS,), rule: str = "even") -> QuantReport:
    """Replace the weights that `targets` name by the values of their MXFP4 form, in place.

    They keep dtype and shape and become exactly representable: what the written folder of quantize_folder loads as.
    Raises UsageError for widths that 32 does not divide, an unknown rule or target, and OverlandError naming a tensor
    that is not finite, before anything is changed.
    """
    weights: dict[str, tuple[Tensor, int]] = {}
    if EXPERTS in targets:
        check_widths(model.config, "config.json")
        ends = (".experts.gate_up", ".experts.down")
        weights |= {name: (weight, 1) for name, weight in model.named_parameters() if name.endswith(ends)}
    linears = chosen_linears(model, [t for t in targets if t != EXPERTS], "targets")
    weights |= {f"{path}.weight": (linear.weight, -1) for path, linear in linears.items()}
    rounded: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, (weight, dim) in weights.items():
            _check_finite(name, weight)
            rounded[name] = kernels.mxfp4_round(weight, dim, rule)
        errors = tuple(TensorError.between(name, weight, rounded[name]) for name, (weight, _) in weights.items())
        report = QuantReport(rule, errors, sum(weight.nbytes for weight, _ in weights.values()))
        for name, (weight, _) in weights.items():
            weight.copy_(rounded[name])
    return report


def quantize_folder(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    rule: str = "even",
    targets: Sequence[str] = (EXPERTS,),
) -> QuantReport:
    """Write model folder `src` to `dst` with packed weights, in the released layout of its family, file by file.

    A matrix X.weight [out, in] becomes X.weight_packed [out, in/2] and X.weight_scale [out, in/32]; gpt-oss's stacked
    experts become X_blocks and X_scales; all uint8. Every other tensor, the tokenizer, the template, the licences and
    the lineage are carried along as they are, and config.json gains quantization_config. `dst` appears whole or not at
    all; memory holds one file.

    Raises UsageError for a `dst` that holds something, a `src` that is not a model folder or quantised already, an
    unknown rule or target, and widths that 32 does not divide; BrokenFileError naming what is wrong in `src`.
    """
    src, dst = Path(src), Path(dst)
    check_new(dst)
    if not (src / "config.json").is_file():
        raise UsageError(f"SRC = '{src}' is not a model folder: it has no config.json")
    if rule not in kernels.MXFP4_CHOICES:
        raise UsageError(f"MXFP4 scale rule = {rule!r} is unknown; valid: {', '.join(kernels.MXFP4_CHOICES)}")
    raw = read_json(src / "config.json")
    if "quantization_config" in raw or "quantization_config" in raw.get("text_config", raw):
        raise UsageError(
            f"{src / 'config.json'}: SRC is quantised already (quantization_config is set); start from the unquantised"
        )
    config, wanted, files = check_folder(src)
    chosen = _chosen(config, wanted, targets, src / "config.json")
    stacked = FAMILIES[config.family].experts.fused

    errors: dict[str, TensorError] = {}
    names: dict[str, str] = {}
    before = total = 0
    with new_folder(dst) as temporary:
        copy_companions(src, temporary)
        for file in files:
            out: dict[str, Tensor] = {}
            for name, weight in _tensors(file):
                _check_finite(name, weight, file)
                piece = chosen.get(name.removeprefix(TEXT))
                if piece is None:
                    out[name] = weight
                    continue
                pair = Pair.of(weight, rule, stacked and ".experts." in piece.ours)
                out |= pair.released(name)
                error = TensorError.between(piece.ours, weight, pair.decoded())
                errors[piece.ours] = errors[piece.ours] + error if piece.ours in errors else error
                before += weight.nbytes
            atomic_write(temporary / file.name, save(out, metadata={"format": "pt"}))
            names |= dict.fromkeys(out, file.name)
            total += sum(tensor.nbytes for tensor in out.values())
        if len(files) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": names}
            atomic_write(temporary / INDEX, json.dumps(index, indent=2) + "\n")
        write_json(temporary / "config.json", _quantized_config(raw, config, wanted, chosen, rule))
    return QuantReport(rule, tuple(errors.values()), before)


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


def _chosen(config: DecoderConfig, wanted: dict[str, Piece], targets: Sequence[str], source: Path) -> dict[str, Piece]:
    """The released tensors that `targets` name, checked for their widths."""
    model = without_memory(config, source)
    linears = chosen_linears(model, [t for t in targets if t != EXPERTS], "targets")
    if EXPERTS in targets:
        check_widths(config, str(source))
    chosen = {}
    for name, piece in wanted.items():
        path, _, leaf = piece.ours.rpartition(".")
        expert = path.endswith(".experts") and leaf in ("gate_up", "down")
        if (expert and EXPERTS in targets) or (leaf == "weight" and path in linears):
            chosen[name] = piece
            width = piece.shape[-2] if expert and len(piece.shape) == 3 else piece.shape[-1]
            if width % kernels.MXFP4_BLOCK:
                raise UsageError(f"{source}: '{name}' has {width} inputs, not a multiple of {kernels.MXFP4_BLOCK}")
    return chosen


def _quantized_config(
    raw: dict[str, Any], config: DecoderConfig, wanted: dict[str, Piece], chosen: dict[str, Piece], rule: str
) -> dict[str, Any]:
    """config.json with quantization_config where its readers look for it: beside the text decoder's fields."""
    matrices = {piece.name.removesuffix(".weight") for piece in wanted.values() if len(piece.shape) == 2}
    plain = sorted(matrices - {piece.name.removesuffix(".weight") for piece in chosen.values()})
    if FAMILIES[config.family].experts.fused:
        quantization: dict[str, Any] = {"quant_method": "mxfp4", "modules_to_not_convert": plain}
    else:
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
        released = all(".experts." in piece.ours for piece in chosen.values())
        quantization = {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": list(IGNORED) if released else [name for name in plain if not name.endswith("embed_tokens")],
        }
    quantization["scale_rule"] = rule  # not a field of the format; readers pass over it, people want to know
    if "text_config" in raw:
        return {**raw, "text_config": {**raw["text_config"], "quantization_config": quantization}}
    return {**raw, "quantization_config": quantization}


def _tensors(file: Path) -> Any:
    """(name, tensor) of a safetensors file, one at a time."""
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a dict)
                yield name, tensors.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise BrokenFileError(f"{file}: cannot be read: {error}") from None


def _check_finite(name: str, weight: Tensor, file: Path | None = None) -> None:
    if not torch.isfinite(weight).all():
        if file is not None:
            raise BrokenFileError(f"{file}: '{name}' holds values that are not finite")
        raise OverlandError(f"'{name}' holds weights that are not finite; a block with one cannot be quantised")
