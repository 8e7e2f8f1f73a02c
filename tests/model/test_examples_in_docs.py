"""The two examples of docs/model.md do what the page says: a family that Transformers has and we have not, a mixer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from overland.model import Decoder, DecoderConfig, load_model, save_model
from overland.model.families import FAMILIES
from tests.tiny import random_ids, tiny

PAGE = Path(__file__).parents[2] / "docs" / "model.md"


def example(heading: str) -> dict[str, Any]:
    """What the Python block under a heading of the page defines."""
    section = PAGE.read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {"__name__": "__example__"}
    exec(compile(block, f"{PAGE} ({heading})", "exec", dont_inherit=True), names)
    return names


def test_the_family_reads_and_writes_what_transformers_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setitem(FAMILIES, "mistral", FAMILIES["llama"])  # what the example puts there is taken out at the end
    example("Adding a family")
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "sliding_window": 6}
    config = transformers.MistralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    config._attn_implementation = "eager"
    theirs = transformers.MistralForCausalLM(config).double().eval()
    theirs.save_pretrained(tmp_path / "a")
    ours = load_model(tmp_path / "a", torch.float64)
    ids = random_ids(2, 20, vocab=64)
    assert (ours(ids).logits - theirs(ids).logits).abs().max() < 1e-6  # its rotary angles are formed in fp32
    save_model(ours, tmp_path / "b")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b", dtype=torch.float64)
    assert type(again) is type(theirs)
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def with_means() -> Decoder:
    mean: type[nn.Module] = example("Adding a mixer")["Mean"]
    model = tiny()
    for index in (1, 3):
        model.model.layers[index].self_attn = mean(model.config.hidden_size).double()
    return model


def test_the_mixer_decodes_as_it_reads_the_whole() -> None:
    model, ids = with_means(), random_ids(2, 12)
    whole = model(ids).logits
    assert isinstance(model.config, DecoderConfig)
    with torch.no_grad():
        cache = model.new_cache(2)
        pieces = [model(piece, cache=cache).logits for piece in ids.split([5, 1, 4, 1, 1], dim=1)]
    assert (torch.cat(pieces, 1) - whole).abs().max() < 1e-9


def test_the_mixer_does_not_see_what_comes_later() -> None:
    model, ids = with_means(), random_ids(1, 12)
    changed = ids.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 32
    assert torch.equal(model(ids).logits[:, :8], model(changed).logits[:, :8])
