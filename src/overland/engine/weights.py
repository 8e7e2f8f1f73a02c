"""Checksums of weights: whether what arrived is what was sent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def tensor_checksum(tensor: Tensor) -> str:
    """SHA-256, in hex, of a tensor's dtype, shape and bytes."""
    flat = tensor.detach().to("cpu").contiguous()
    digest = hashlib.sha256(f"{str(flat.dtype).removeprefix('torch.')} {list(flat.shape)}".encode())
    digest.update(flat.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def checksums_of(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """`tensor_checksum` of each, by name, in the order of the names."""
    return {name: tensor_checksum(tensors[name]) for name in sorted(tensors)}


def checksum_of(tensors: Mapping[str, Tensor]) -> str:
    """One SHA-256 for all of them: names and tensors, in the order of the names."""
    lines = [f"{name} {value}\n" for name, value in checksums_of(tensors).items()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
