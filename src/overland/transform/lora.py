"""Low-rank adaptation of any Linear, applied from outside: y = x W' + (alpha / r) x A' B'.

`apply_lora` freezes the model and gives every chosen Linear two small matrices, A [r, in] and B [out, r]; B
starts at 0, so nothing changes before the first step. Files are PEFT's: adapter_config.json, adapter_model.safetensors.
Source: Hu et al. 2021; rank-stabilised scaling alpha / sqrt(r): Kalajdzievski 2023.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from overland.config import Section
from overland.errors import BrokenFileError, UsageError
from overland.runs import atomic_write, read_json, write_json
from overland.transform.targets import ALL, chosen_linears, replace_module

PREFIX = "base_model.model."
M = TypeVar("M", bound=nn.Module)


class LoRASection(Section):
    """Low-rank adaptation: the model stays as it is, small matrices beside its Linears are trained."""

    rank: int = Field(default=16, ge=1)
    """Columns of A and rows of B."""
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank."""
    rank_stabilised: bool = False
    """Scale by alpha / sqrt(rank) instead, so that the learning rate needs no change with the rank."""
    targets: tuple[str, ...] = (ALL,)
    """Linears by name: a module's own name (q_proj), a pattern over its whole path (model.layers.*.o_proj), or
    all-linear for every Linear but the output head. Stacked routed experts are no Linears and stay as they are."""
    seed: int = Field(default=0, ge=0)
    """Seed of A."""

    @field_validator("targets")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError(f"name at least one Linear, or {ALL}")
        return value

    @property
    def scale(self) -> float:
        """What the product of A and B is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)


class LoRALinear(nn.Linear):
    """A Linear with an update beside it. `weight` and `bias` are the original's own parameters, under their names."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, generator: torch.Generator) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.rank, self.scale = rank, scale
        bound = 1.0 / math.sqrt(base.in_features)  # PEFT's kaiming_uniform(a=sqrt(5))
        a = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.lora_A = nn.Parameter(a.to(base.weight))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        self.original: Tensor | None = None
        """The weight before `merge`; None while not merged."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        if self.original is not None:
            return y
        return y + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scale

    def merged_weight(self) -> Tensor:
        """W + scale * B A, computed in fp32 at least, in the weight's dtype."""
        if self.original is not None:
            return self.weight.detach()
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        update = self.lora_B.detach().to(wide) @ self.lora_A.detach().to(wide)
        return (self.weight.detach().to(wide) + self.scale * update).to(self.weight.dtype)

    @torch.no_grad()
    def merge(self) -> None:
        """Put the update into the weight; the weight that was is kept."""
        if self.original is None:
            merged = self.merged_weight()
            self.original = self.weight.detach().clone()
            self.weight.copy_(merged)

    @torch.no_grad()
    def unmerge(self) -> None:
        """Take the update out again: the very bits that were there before `merge`."""
        if self.original is not None:
            self.weight.copy_(self.original)
            self.original = None


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoRALinear]]:
    """Path and module of every adapted Linear."""
    for path, module in model.named_modules():
        if isinstance(module, LoRALinear):
            yield path, module


def apply_lora(model: M, section: LoRASection) -> M:
    """Freeze `model` and adapt the Linears that `section.targets` names, in place.

    Raises UsageError for a target that names no Linear, and for a model that is adapted already.
    """
    if any(True for _ in lora_layers(model)):
        raise UsageError("lora: the model is adapted already; merge or remove the adapter first")
    chosen = chosen_linears(model, section.targets, "lora.targets")
    generator = torch.Generator().manual_seed(section.seed)
    model.requires_grad_(False)
    for path, base in chosen.items():
        replace_module(model, path, LoRALinear(base, section.rank, section.scale, generator))
    return model


def remove_lora(model: M, *, merge: bool = True) -> M:
    """Plain Linears again, with the update in their weights (or, without `merge`, as they were); all trainable."""
    for path, module in list(lora_layers(model)):
        module.merge() if merge else module.unmerge()
        plain = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
        plain.weight, plain.bias = module.weight, module.bias
        replace_module(model, path, plain)
    return model.requires_grad_(True)


def merge_lora(model: nn.Module) -> None:
    """Put every update into its weight, for faster inference."""
    for _, module in lora_layers(model):
        module.merge()


def unmerge_lora(model: nn.Module) -> None:
    """Undo `merge_lora`, bit for bit."""
    for _, module in lora_layers(model):
        module.unmerge()


def save_lora(
    model: nn.Module, section: LoRASection, directory: str | os.PathLike[str], base: str | None = None
) -> None:
    """Write the adapter as PEFT does. `base` is the folder or name of the model that it belongs to."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    layers = dict(lora_layers(model))
    tensors = {}
    for path, module in layers.items():
        tensors[f"{PREFIX}{path}.lora_A.weight"] = module.lora_A.detach().cpu().contiguous()
        tensors[f"{PREFIX}{path}.lora_B.weight"] = module.lora_B.detach().cpu().contiguous()
    atomic_write(directory / "adapter_model.safetensors", save(tensors, metadata={"format": "pt"}))
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "r": section.rank,
        "lora_alpha": section.alpha,
        "lora_dropout": 0.0,
        "use_rslora": section.rank_stabilised,
        "target_modules": sorted(layers),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    write_json(directory / "adapter_config.json", config)


def load_lora(model: M, directory: str | os.PathLike[str]) -> M:
    """Adapt `model` with an adapter in PEFT's layout, ours or PEFT's own.

    Raises UsageError for an adapter of another kind and BrokenFileError naming a tensor that is missing or misshapen.
    """
    directory = Path(directory)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (directory / name).is_file():
            raise UsageError(
                f"adapter = '{directory}': {name} is missing; a run with lora leaves an adapter at RUN/adapter"
            )
    config = read_json(directory / "adapter_config.json")
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or config.get("use_dora"):
        raise UsageError(f"{directory}: only plain LoRA without biases is read (peft_type, bias, use_dora)")
    weights = directory / "adapter_model.safetensors"
    try:
        with safe_open(weights, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise BrokenFileError(f"{weights}: cannot be read: {error}") from None
    paths = sorted({name.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for name in tensors})
    section = LoRASection(
        rank=config["r"],
        alpha=config["lora_alpha"],
        rank_stabilised=bool(config.get("use_rslora", False)),
        targets=tuple(paths),
    )
    apply_lora(model, section)
    for path, module in lora_layers(model):
        for letter, parameter in (("A", module.lora_A), ("B", module.lora_B)):
            name = f"{PREFIX}{path}.lora_{letter}.weight"
            if name not in tensors or tensors[name].shape != parameter.shape:
                found = list(tensors[name].shape) if name in tensors else "missing"
                raise BrokenFileError(f"{weights}: '{name}' is {found}, the model asks for {list(parameter.shape)}")
            parameter.data.copy_(tensors[name])
    return model
