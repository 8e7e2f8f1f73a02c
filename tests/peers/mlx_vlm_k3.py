"""Run inside a virtual environment that has mlx and mlx-vlm 0.7.10 (MIT): its Kimi K3 on a model folder of ours.

python mlx_vlm_k3.py FOLDER     reads config.json, preprocessor_config.json, model.safetensors and inputs.safetensors
                                (ids, targets, patches, grids, and pictures [H, W, 3 or 4] uint8), writes
                                expected.safetensors: features, logits, loss, vision's gradients, and patches and grid
                                of every picture

Only the model's files are loaded, by their place: mlx, Pillow and Transformers are all that has to be beside them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any


def model_module() -> Any:
    found = importlib.util.find_spec("mlx_vlm")
    assert found is not None
    assert found.origin is not None
    root = Path(found.origin).parent
    for name, at in (("mlx_vlm", root), ("mlx_vlm.models.kimi_k3", root / "models" / "kimi_k3")):
        package = types.ModuleType(name)
        package.__path__ = [str(at)]  # its own __init__ wants everything that it serves models with
        sys.modules[name] = package
    parts = ("config", "kimi_k3", "processing_kimi_k3")
    return types.SimpleNamespace(**{p: importlib.import_module(f"mlx_vlm.models.kimi_k3.{p}") for p in parts})


def processor(peer: Any, folder: Path) -> Any:
    """Its image processor as our preprocessor_config.json asks, read as its from_pretrained does."""
    said = json.loads((folder / "preprocessor_config.json").read_text("utf-8"))["media_proc_cfg"]
    merge = said["merge_kernel_size"]
    said |= {"merge_kernel_size": [merge, merge] if isinstance(merge, int) else merge}
    names = ("patch_size", "in_patch_limit", "patch_limit_on_one_side", "image_mean", "image_std", "merge_kernel_size")
    kept = {name: said[name] for name in (*names, "transparent_bg_config")}
    return peer.processing_kimi_k3.KimiK3ImageProcessor(**kept)


def main(folder: Path) -> None:
    import mlx.core as mx
    import mlx.nn as nn
    import numpy as np
    from mlx.utils import tree_flatten, tree_unflatten
    from PIL import Image

    peer = model_module()
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    text = peer.config.TextConfig.from_dict(fields["text_config"])
    vision = peer.config.VisionConfig.from_dict(fields["vision_config"])
    config = peer.config.ModelConfig(
        text_config=text,
        vision_config=vision,
        vocab_size=text.vocab_size,
        media_placeholder_token_id=fields["media_placeholder_token_id"],
    )
    model = peer.kimi_k3.Model(config)
    weights = mx.load(str(folder / "model.safetensors"))
    for part in (model, model.vision_tower, model.language_model):
        weights = part.sanitize(weights)
    model.load_weights(list(weights.items()))
    eps = fields["vision_config"]["vt_norm_eps"]  # it has bf16's epsilon there, whatever the type
    tower = model.vision_tower.encoder
    for norm in (tower.final_layernorm, *(n for b in tower.blocks for n in (b.norm0, b.norm1))):
        norm.eps = eps

    inputs = mx.load(str(folder / "inputs.safetensors"))
    ids, targets, patches = inputs["ids"], inputs["targets"], inputs["patches"]
    grids = inputs["grids"].tolist()

    def loss(parameters: dict[str, Any]) -> Any:
        model.update(tree_unflatten(list(parameters.items())))
        logits = model(ids, patches, grid_thws=grids).logits.astype(mx.float32)
        return nn.losses.cross_entropy(logits, targets, reduction="mean")

    features = model.mm_projector(model.vision_tower(patches.transpose(0, 2, 3, 1), grids))
    logits = model(ids, patches, grid_thws=grids).logits
    ours = ("vision_tower.", "mm_projector.")
    seen = {name: value for name, value in tree_flatten(model.parameters()) if name.startswith(ours)}
    value, gradients = mx.value_and_grad(loss)(seen)
    out = {"features": features, "logits": logits, "loss": value}
    for name, gradient in gradients.items():
        turned = gradient.transpose(0, 3, 1, 2) if name.endswith("patch_embed.proj.weight") else gradient
        out[f"gradient.{name}"] = turned
    for name, picture in inputs.items():
        if name.startswith("picture."):
            how = processor(peer, folder)
            made = how([Image.fromarray(np.array(picture))])
            out[f"patches.{name}"], out[f"grid.{name}"] = made["pixel_values"], made["grid_thws"]
    mx.save_safetensors(str(folder / "expected.safetensors"), {name: mx.contiguous(v) for name, v in out.items()})
    print(json.dumps({"tensors": sorted(out)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
