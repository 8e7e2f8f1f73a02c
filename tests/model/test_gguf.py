"""The GGUF file, read back with the gguf package: names, shapes, values, metadata, vocabulary; and what is refused.

That llama.cpp computes the same from it is held by tests/peers/test_engines.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from overland.chat import Tokenizer, build_tokenizer
from overland.corpus.bpe import CL100K_PATTERN, K3_PATTERN, PATTERN, train_bpe
from overland.errors import BrokenFileError, UsageError
from overland.model import Decoder, DecoderConfig, load_model, save_model
from overland.model.gguf import export_gguf
from overland.model.gguf.vocabulary import vocabulary
from tests.model.test_families import CASES, LLAMA3
from tests.tiny import drawn, tiny, with_vision

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    reader = gguf.GGUFReader(file)
    tensors = {}
    for entry in reader.tensors:
        shape = [int(size) for size in reversed(entry.shape)]
        bits = torch.from_numpy(entry.data.copy())
        kind = entry.tensor_type.name
        tensors[entry.name] = (bits.view(torch.bfloat16) if kind == "BF16" else bits).reshape(shape)
    return tensors, {name: field.contents() for name, field in reader.fields.items()}


def words(pattern: str = K3_PATTERN) -> Tokenizer:
    return build_tokenizer(train_bpe(["the quick brown fox 12"] * 3, 270, pattern=pattern))


def exported(model: Decoder, tmp_path: Path, dtype: str = "float32") -> tuple[dict[str, Tensor], dict[str, Any]]:
    save_model(model, tmp_path / "src")
    export_gguf(tmp_path / "src", tmp_path / "dst", dtype)
    return read(tmp_path / "dst" / "model.gguf")


def test_k3_keeps_every_number(tmp_path: Path) -> None:
    model = tiny(torch.float32)
    tensors, fields = exported(model, tmp_path)
    ours = model.state_dict()
    kda, mla = "model.layers.2", "model.layers.1"
    assert torch.equal(tensors["blk.2.ssm_a"], -ours[f"{kda}.self_attn.A_log"].exp())
    assert torch.equal(tensors["blk.2.ssm_g.weight"], ours[f"{kda}.self_attn.g_proj.weight"])
    assert torch.equal(tensors["blk.1.attn_gate.weight"], ours[f"{mla}.self_attn.g_proj.weight"])
    both = ours[f"{mla}.self_attn.kv_b_proj.weight"].view(2, 8, 8)
    assert torch.equal(tensors["blk.1.attn_k_b.weight"], both[:, :4].mT)
    assert torch.equal(tensors["blk.1.attn_v_b.weight"], both[:, 4:])
    experts = ours[f"{mla}.block_sparse_moe.experts.gate_up"]
    stacked = torch.cat([tensors["blk.1.ffn_gate_exps.weight"], tensors["blk.1.ffn_up_exps.weight"]], 1)
    assert torch.equal(stacked.mT, experts)
    query = ours[f"{mla}.mlp_res_norm.weight"] * ours[f"{mla}.mlp_res_proj.weight"][0]
    assert torch.equal(tensors["blk.1.ffn_res_score.weight"], query)
    assert fields["general.architecture"] == "kimi-k3"
    assert fields["kimi-k3.attention.head_count_kv"] == [0, 1, 0, 1]
    assert fields["kimi-k3.kda.gate_lower_bound"] == -5.0
    counted = sum(value.numel() for value in tensors.values())
    fused = sum(value.numel() for name, value in ours.items() if name.endswith("_res_norm.weight"))
    assert counted == sum(value.numel() for value in ours.values()) - fused


def test_matrices_are_cast_and_what_must_be_wide_is_not(tmp_path: Path) -> None:
    model = tiny(torch.float32)
    tensors, _ = exported(model, tmp_path, "bfloat16")
    assert torch.equal(
        tensors["blk.0.attn_q.weight"], model.state_dict()["model.layers.0.self_attn.q_proj.weight"].bfloat16()
    )
    narrow = {name for name, value in tensors.items() if value.dtype == torch.bfloat16}
    assert not any(tensors[name].ndim < 2 or "conv1d" in name or "ffn_gate_inp" in name for name in narrow)
    assert tensors["blk.0.ssm_a"].dtype == torch.float32


def test_latents_with_an_epsilon_of_their_own_are_scaled_to_the_files_one(tmp_path: Path) -> None:
    """What llama.cpp does with the file's tensors, written out: norm with the one epsilon, then multiply."""
    model = tiny(torch.float32, rms_norm_eps=1e-2, latent_norm_eps=1e-4)
    tensors, fields = exported(model, tmp_path, "bfloat16")
    one = fields["kimi-k3.attention.layer_norm_rms_epsilon"]
    ours = {name: value.bfloat16().double() for name, value in model.state_dict().items()}
    x = torch.randn(5, model.config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for ending, theirs, rows in (("q_a_proj", "attn_q_a", None), ("kv_a_proj_with_mqa", "attn_kv_a_mqa", 8)):
        plain = x @ ours[f"model.layers.1.self_attn.{ending}.weight"].T
        scaled = x @ tensors[f"blk.1.{theirs}.weight"].double().T
        assert_close(normed(scaled[:, :rows], one), normed(plain[:, :rows], 1e-4), rtol=1e-6, atol=1e-7)
        assert not torch.allclose(normed(plain[:, :rows], one), normed(plain[:, :rows], 1e-4), rtol=1e-4)
        if rows is not None:
            assert_close(scaled[:, rows:], plain[:, rows:])


def normed(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def test_prediction_blocks_and_vision_are_left_out(tmp_path: Path) -> None:
    model = drawn(with_vision({"num_nextn_predict_layers": 1}), torch.float32)
    save_model(model, tmp_path / "src")
    _, said = export_gguf(tmp_path / "src", tmp_path / "dst", "float32")
    assert "without the vision part" in said
    tensors, _ = read(tmp_path / "dst" / "model.gguf")
    assert {name.split(".")[1] for name in tensors if name.startswith("blk.")} == {"0", "1", "2", "3"}


def test_llama_pairs_its_rotary_dims_and_divides_frequencies(tmp_path: Path) -> None:
    fields = {**CASES["llama"], "rope_scaling": LLAMA3, "tie_word_embeddings": True}
    model = drawn(fields, torch.float32)
    tensors, _ = exported(model, tmp_path)
    k = model.state_dict()["model.layers.0.self_attn.k_proj.weight"].view(2, 2, 4, 32)
    assert torch.equal(tensors["blk.0.attn_k.weight"].view(2, 4, 2, 32), k.transpose(1, 2))
    divisors = tensors["rope_freqs.weight"]
    assert divisors[0] == 1
    assert divisors[-1] == LLAMA3["factor"]
    assert "output.weight" not in tensors


@pytest.mark.parametrize(("pattern", "name"), [(K3_PATTERN, "kimi-k2"), (CL100K_PATTERN, "llama-bpe"), (PATTERN, None)])
def test_the_vocabulary_names_a_rule_that_llama_cpp_has(pattern: str, name: str | None, tmp_path: Path) -> None:
    tokenizer = words(pattern)
    tokenizer.save(tmp_path)
    keys, said = vocabulary(tmp_path, tokenizer.vocab_size + 2)
    assert keys.get("tokenizer.ggml.pre") == name
    assert ("send it ids" in said) == (name is None)
    tokens = keys["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert tokens[-2:] == [f"[UNUSED{tokenizer.vocab_size + i}]" for i in range(2)]
    assert tokens[tokenizer.special("<|open|>")] == "<|open|>"
    with pytest.raises(BrokenFileError, match="has id 10, and the model has 10"):
        vocabulary(tmp_path, 10)


def test_what_belongs_to_the_model_goes_along(tmp_path: Path) -> None:
    tokenizer = words()
    model = tiny(torch.float32, vocab_size=tokenizer.vocab_size, eos_token_id=[5, 6], bos_token_id=4)
    save_model(model, tmp_path / "src")
    tokenizer.save(tmp_path / "src")
    (tmp_path / "src" / "LICENSE").write_text("CC0")
    (tmp_path / "src" / "chat_template.jinja").write_text("{{ messages }}")
    said = export_gguf(tmp_path / "src", tmp_path / "dst")
    assert said == ("kimi-k3", f"with {tokenizer.vocab_size} tokens, text split as kimi-k2")
    _, fields = read(tmp_path / "dst" / "model.gguf")
    assert fields["tokenizer.ggml.eos_token_id"] == 5
    assert fields["tokenizer.ggml.bos_token_id"] == 4
    assert fields["tokenizer.chat_template"] == "{{ messages }}"
    assert {file.name for file in (tmp_path / "dst").iterdir()} >= {"model.gguf", "LICENSE", "tokenizer.json"}
    assert not list((tmp_path / "dst").glob("*.safetensors"))


DSA = {"dsa_config": {"num_heads": 2, "head_dim": 4, "topk": 8}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"family": "kimi_k3", **DSA},
            "kimi-k3 cannot run this model: it attends to everything, and the layers with an",
        ),
        (CASES["qwen3 with a window"], "some layers have a sliding window"),
        (CASES["mixtral with a window"], "some layers have a sliding window"),
        (CASES["qwen3 with YaRN"], "YaRN has an attention factor or ends of its own"),
        (CASES["qwen3_moe, weights not renormalised"], "the weights of chosen experts are not renormalised"),
        (CASES["deepseek_v3"], "family = 'deepseek_v3' is not written as GGUF; valid: kimi_k3, kimi_linear, llama"),
        (CASES["gpt_oss"], "family = 'gpt_oss' is not written as GGUF"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    model = tiny(torch.float32, **DSA) if "dsa_config" in fields else Decoder(DecoderConfig.from_dict(fields)).float()
    save_model(model, tmp_path / "src")
    with pytest.raises(UsageError, match=reason):
        export_gguf(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


def test_nothing_is_written_over_or_left_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tiny(torch.float32), tmp_path / "src")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(UsageError, match="is not an empty folder"):
        export_gguf(tmp_path / "src", tmp_path / "full")
    with pytest.raises(UsageError, match="dtype = 'int8'"):
        export_gguf(tmp_path / "src", tmp_path / "dst", "int8")

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", broken)
    with pytest.raises(Exception, match="the disk is full"):
        export_gguf(tmp_path / "src", tmp_path / "dst")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["full", "src"]


def test_the_export_of_an_export_in_bf16_is_the_same(tmp_path: Path) -> None:
    save_model(tiny(torch.float32), tmp_path / "src")
    once = load_model(tmp_path / "src", torch.bfloat16)
    save_model(once, tmp_path / "half")
    export_gguf(tmp_path / "src", tmp_path / "a")
    export_gguf(tmp_path / "half", tmp_path / "b")
    assert (tmp_path / "a" / "model.gguf").read_bytes() == (tmp_path / "b" / "model.gguf").read_bytes()
