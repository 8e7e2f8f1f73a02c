"""Run inside a virtual environment that has mlx-lm (see test_k3_peers.py): prints JSON.

python mlx_k3.py MODEL ASKED ANSWER    logits of ASKED's input_ids [B, T] and `tokens` greedy ones after each row
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models import kimi_k3
from mlx_lm.utils import load_model
from safetensors.numpy import load_file, save_file


def main() -> None:
    folder, asked, answer = (Path(argument) for argument in sys.argv[1:])
    mx.set_default_device(mx.cpu)
    # The text part alone says kimi_linear, under which mlx-lm has Kimi-Linear; K3 it knows by the whole release's name.
    fields = json.loads((folder / "config.json").read_text())
    text = fields.get("text_config", fields)
    whole = {"model_type": "kimi_k3", "text_config": text}
    model, _ = load_model(folder, model_config=whole, get_model_classes=lambda **_: (kimi_k3.Model, kimi_k3.ModelArgs))
    request = load_file(asked)
    ids, tokens = mx.array(request["input_ids"].astype(np.int32)), int(request["tokens"])
    out = {"logits": np.array(model(ids).astype(mx.float32)), "greedy": greedy(model, ids, tokens)}
    save_file(out, answer)
    print(json.dumps({"mlx": version("mlx"), "mlx-lm": version("mlx-lm")}))


def greedy(model: kimi_k3.Model, ids: mx.array, tokens: int) -> np.ndarray:
    """The likeliest token again and again, with the model's own cache."""
    cache = model.make_cache()
    chosen, step = [], ids
    for _ in range(tokens):
        step = mx.argmax(model(step, cache=cache)[:, -1:], axis=-1).astype(mx.int32)
        chosen.append(np.array(step))
    return np.concatenate(chosen, axis=1)


if __name__ == "__main__":
    main()
