"""The models of benchmarks.serving: folders and GGUF files with drawn bf16 weights in the shapes of serving_shapes."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

import torch

from overland.chat import build_tokenizer
from overland.corpus.bpe import K3_PATTERN, train_bpe
from overland.model import Decoder, DecoderConfig, initialise, save_model
from overland.model.gguf import export_gguf
from overland.transform import quantize_folder

HERE = Path(__file__).parent
SHAPES = tuple(sorted(path.stem for path in (HERE / "serving_shapes").glob("*.json")))
VOCABULARY = 16384  # the larger shape's table has rows that no token uses
CONTENT_ALONE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MODULES = 150  # of the standard library: what the tokenizer is trained on


def make_folder(shape: str, scratch: Path) -> Path:
    """A model folder that our server and vLLM open."""
    folder = scratch / shape
    if folder.exists():
        return folder
    folder.mkdir()
    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:MODULES]
    bpe = train_bpe([path.read_text("utf-8", "replace") for path in modules], VOCABULARY - 11, pattern=K3_PATTERN)
    tokenizer = build_tokenizer(bpe)
    fields = json.loads((HERE / f"serving_shapes/{shape}.json").read_text())
    ends = {"eos_token_id": tokenizer.vocab_size - 1}
    model = initialise(Decoder(DecoderConfig.from_dict({**fields, **ends})), "standard", 0).to(torch.bfloat16)
    save_model(model, folder)
    tokenizer.save(folder)
    (folder / "chat_template.jinja").write_text(CONTENT_ALONE)  # for the peers; ours is K3's
    return folder


def make_packed(folder: Path, scratch: Path) -> Path:
    """The same with every Linear but the head in MXFP4, and the experts where there are any."""
    packed = scratch / f"{folder.name}_mxfp4"
    if not packed.exists():
        experts = ("experts",) if folder.name.startswith("k3") else ()
        quantize_folder(folder, packed, targets=("all-linear", *experts))
    return packed


def make_gguf(folder: Path, scratch: Path, weights: str, python: Path) -> Path:
    """The folder as GGUF in bf16, or with the same matrices in MXFP4 (by the gguf package under `python`)."""
    plain, packed = scratch / f"{folder.name}_gguf", scratch / f"{folder.name}.mxfp4.gguf"
    if not plain.exists():
        export_gguf(folder, plain, "bfloat16")
    if weights == "bf16":
        return plain / "model.gguf"
    if not packed.exists():
        subprocess.run(
            [str(python), str(HERE / "serving_llama_cpp.py"), "pack", str(plain / "model.gguf"), str(packed)],
            check=True,
            env={"PYTHONPATH": ""},
            stdout=subprocess.DEVNULL,
        )
    return packed
