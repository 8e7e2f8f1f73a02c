"""The golden case of K3 with images: a tiny model of ours in the released layout, and what mlx-vlm makes of it.

Write it anew, in an environment with mlx-vlm (`make peers` makes it):  python -m tests.model.k3_vision PYTHON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from overland.model import load_model, save_model
from overland.model.vision import Images, token_counts
from overland.model.vision.preprocess import Preprocessing
from overland.runs import atomic_write

FOLDER = Path(__file__).parent / "data" / "k3_vision"
SCRIPT = Path(__file__).parents[1] / "peers" / "mlx_vlm_k3.py"
PATCHES = Preprocessing(patch=2, most_patches=40, most_per_side=12, background="white")
GRIDS = ((1, 4, 6), (1, 2, 2), (2, 6, 4), (1, 6, 10))


def differences(expected: Mapping[str, Tensor]) -> dict[str, float]:
    """Ours against `expected`: features and logits to their largest, the loss, gradients to each one's norm."""
    model, inputs = load_model(FOLDER), load_file(FOLDER / "inputs.safetensors")
    images = Images(inputs["patches"], tuple(tuple(grid) for grid in inputs["grids"].tolist()))
    features = model.embed_images(images)
    logits = model(inputs["ids"], images=images).logits
    loss = F.cross_entropy(logits[0], inputs["targets"][0])
    loss.backward()
    found = {"loss": abs(float(loss.detach() - expected["loss"]))}
    for name, value in (("features", features.detach()), ("logits", logits.detach())):
        found[name] = float((value - expected[name]).abs().max() / expected[name].abs().max())
    for name, parameter in model.named_parameters():
        if (wanted := expected.get(f"gradient.{name}")) is not None:
            assert parameter.grad is not None
            found[name] = float((parameter.grad - wanted).norm() / wanted.norm())
    return found


def run_peer(python: str | os.PathLike[str], folder: Path) -> None:
    """Let the peer write expected.safetensors into `folder`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [str(python), str(SCRIPT), str(folder)], check=True, env=environment, capture_output=True, timeout=600
    )


def write_case(folder: Path) -> None:
    """Model and inputs, from a seed."""
    from tests.tiny import MEDIA, drawn, with_vision

    save_model(drawn(with_vision(), torch.float32), folder)
    atomic_write(folder / "preprocessor_config.json", json.dumps(PATCHES.to_dict(), indent=2) + "\n")
    generator = torch.Generator().manual_seed(0)
    patches = torch.randn(sum(t * h * w for t, h, w in GRIDS), 3, 2, 2, generator=generator)
    ids: list[int] = []
    for count in token_counts(GRIDS, (2, 2)):
        ids += [*torch.randint(0, MEDIA, (3,), generator=generator).tolist(), *[MEDIA] * count]
    targets = torch.randint(0, MEDIA, (1, len(ids) + 3), generator=generator)
    inputs = {"ids": torch.tensor([[*ids, 1, 2, 3]]), "targets": targets, "patches": patches}
    for height, width, channels in ((6, 9, 3), (4, 4, 3), (1, 1, 3), (40, 7, 3), (3, 70, 3), (13, 11, 4)):
        noise = torch.randint(0, 256, (height, width, channels), generator=generator, dtype=torch.uint8)
        inputs[f"picture.{height}x{width}x{channels}"] = noise
    save_file({**inputs, "grids": torch.tensor(GRIDS)}, folder / "inputs.safetensors")


if __name__ == "__main__":
    write_case(FOLDER)
    run_peer(sys.argv[1], FOLDER)
    print(differences(load_file(FOLDER / "expected.safetensors")))
