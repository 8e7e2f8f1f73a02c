"""Bad model folders through every verb that reads one: one line that names what is wrong, and nothing written.

The verbs run in this process; what the program does with an error is held by test_failures.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from overland.cli.main import main
from overland.model import save_model
from tests.tiny import tiny

Change = Callable[[dict[str, Any], dict[str, Tensor]], object]
NAME = "model.layers.1.self_attn.q_b_proj.weight"
WIDE = {"moe_intermediate_size": 32, "routed_expert_hidden_size": 32}
VERBS = {
    "info": ("model", "info", "src"),
    "import": ("model", "import", "src", "dst"),
    "export": ("model", "export", "src", "dst"),
    "gguf": ("model", "export", "src", "dst", "--format", "gguf"),
    "quantize": ("quantize", "src", "dst"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "src"
    save_model(tiny(torch.float32, **WIDE), folder)
    return folder


@pytest.fixture
def here(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, its `src` a copy of the good model."""
    (tmp_path / "src").mkdir()
    for file in good.iterdir():
        (tmp_path / "src" / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(verb: str, here: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the verb says, after checking its exit code, that it is a line, and that nothing was written."""
    if verb == "gguf":
        pytest.importorskip("gguf", reason="the gguf package is not installed")
    with pytest.raises(SystemExit) as stopped:
        main(list(VERBS[verb]))
    said = capsys.readouterr()
    assert stopped.value.code in (1, 2), said
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    assert "an error in Overland itself" not in said.err
    assert [entry.name for entry in here.iterdir()] == ["src"]
    return said.err


def edit(here: Path, change: Change) -> None:
    config, weights = here / "src" / "config.json", here / "src" / "model.safetensors"
    fields, tensors = json.loads(config.read_text()), load_file(weights)
    change(fields, tensors)
    config.write_text(json.dumps(fields))
    save_file(tensors, weights)


LISTS = "linear_attn_config"
CONFIGS: dict[str, tuple[Change, str]] = {
    "unknown family": (lambda c, _: c.update(model_type="kimi_k9"), "model_type = 'kimi_k9' is not a family"),
    "missing field": (lambda c, _: c.pop("hidden_size"), "hidden_size is missing; kimi_k3 needs it"),
    "missing list": (lambda c, _: c[LISTS].pop("kda_layers"), "linear_attn_config.kda_layers is missing"),
    "overlap": (lambda c, _: c[LISTS].update(kda_layers=[1, 2, 3]), "layers [2] are in full_attn_layers and in kda"),
    "gap": (
        lambda c, _: c[LISTS].update(kda_layers=[1]),
        "full_attn_layers and kda_layers must cover 1..4; wrong: [3]",
    ),
    "beyond": (lambda c, _: c[LISTS].update(kda_layers=[1, 3, 5]), "must cover 1..4; wrong: [5]"),
    "twice": (lambda c, _: c[LISTS].update(kda_layers=[1, 3, 3]), "kda_layers names a layer twice: [3]"),
    "not a number": (lambda c, _: c.update(rms_norm_eps=float("nan")), "rms_norm_eps = nan"),
    "not positive": (lambda c, _: c.update(rms_norm_eps=0), "rms_norm_eps = 0"),
    "no heads": (lambda c, _: c.update(num_attention_heads=0), "num_attention_heads = 0"),
    "a word": (lambda c, _: c.update(num_experts="many"), "num_experts = 'many'"),
    "too many layers": (lambda c, _: c.update(num_hidden_layers=10**12), "num_hidden_layers = 1000000000000"),
    "too wide": (lambda c, _: c.update(vocab_size=10**30), "vocab_size = 1000000000000000000000000000000"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("fault", CONFIGS)
def test_a_bad_config_is_named(fault: str, verb: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, says = CONFIGS[fault]
    edit(here, change)
    said = refused(verb, here, capsys)
    assert says in said
    assert "config.json" in said


HEADERS: dict[str, tuple[Change, str]] = {
    "missing": (lambda _, t: t.pop(NAME), f"'{NAME}' is missing; the config asks for it with shape [16, 8]"),
    "extra": (lambda _, t: t.update(stray=torch.ones(2)), "'stray' is not a tensor of this model"),
    "shape": (lambda _, t: t.update({NAME: t[NAME][:-1].clone()}), "has shape [15, 8], the config asks for [16, 8]"),
    "type": (lambda _, t: t.update({NAME: t[NAME].int()}), f"'{NAME}' has type I32; valid: F64, F32, BF16, F16"),
}
VALUES: dict[str, tuple[Change, str]] = {
    "NaN": (lambda _, t: t[NAME].fill_(float("nan")), f"'{NAME}' holds values that are not finite"),
    "infinite": (lambda _, t: t["model.norm.weight"].fill_(float("inf")), "'model.norm.weight' holds values that are"),
}


@pytest.mark.parametrize(
    ("fault", "verb"),
    [(fault, verb) for fault in HEADERS for verb in VERBS]
    + [(fault, verb) for fault in VALUES for verb in VERBS if verb != "info"],  # which reads no weights
)
def test_a_bad_tensor_is_named(fault: str, verb: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, says = {**HEADERS, **VALUES}[fault]
    edit(here, change)
    said = refused(verb, here, capsys)
    assert says in said
    assert "model.safetensors" in said


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def flip(file: Path) -> None:
    """The length of the header."""
    data = bytearray(file.read_bytes())
    data[2] ^= 0xFF
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("damage", [cut_short, flip, lambda file: file.write_bytes(b"")], ids=["cut", "flip", "empty"])
def test_a_damaged_file_is_named(
    damage: Callable[[Path], object], verb: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(here / "src" / "model.safetensors")
    assert "model.safetensors: cannot be read: " in refused(verb, here, capsys)


@pytest.mark.parametrize("verb", VERBS)
def test_a_shard_that_is_not_there_is_named(verb: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tiny(torch.float32, **WIDE), here / "src", shard_bytes=10_000)
    next((here / "src").glob("model-00002-*")).unlink()
    assert "index.json: names 'model-00002-of-" in refused(verb, here, capsys)


def test_a_config_alone_is_counted_and_a_whole_folder_says_that_it_was_checked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for files, said in ((1, 1), (0, None)):
        with pytest.raises(SystemExit) as stopped:
            main(["model", "info", "src", "--json"])
        assert not stopped.value.code
        assert json.loads(capsys.readouterr().out)["weight_files"] == said
        if files:
            (here / "src" / "model.safetensors").unlink()


def test_a_context_beyond_the_models_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["model", "info", "src", "--context", "97"])
    assert stopped.value.code == 2
    assert "context = 97 tokens; valid: 1 to 96" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["nan", "0", "-1", "inf"])
def test_a_shard_of_no_size_is_named(size: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["model", "export", "src", "dst", "--shard-gb", size])
    assert stopped.value.code == 2
    assert f"--shard-gb {float(size)}: valid: from 1e-9" in capsys.readouterr().err
    assert [entry.name for entry in here.iterdir()] == ["src"]
