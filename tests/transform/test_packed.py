"""Models whose matrices stay packed, in K3's and gpt-oss's layout: the logits of decoded ones, less memory.

gpt-oss's layout is also opened by Transformers, which is then asked for its logits.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from overland.errors import BrokenFileError, UsageError
from overland.model import Decoder, initialise, load_model, preset, save_model
from overland.model.config import DecoderConfig
from overland.transform import load_packed, pack, packed_bytes, quantize_folder, quantize_model
from overland.transform.packed import PackedLinear

IDS = torch.arange(40).view(2, 20) * 7 % 640
GPT_OSS = {
    "model_type": "gpt_oss",
    "vocab_size": 640,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
    "max_position_embeddings": 128,
}


def random(config: DecoderConfig, seed: int = 0) -> Decoder:
    model, gen = Decoder(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.randn(value.shape, generator=gen) * 0.08 + ("norm" in name))
    return model.eval()


@pytest.fixture(scope="module")
def k3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A nano folder, and the same quantised."""
    root = tmp_path_factory.mktemp("k3")
    save_model(initialise(Decoder(preset("nano")), "induction", 3), root / "plain")
    quantize_folder(root / "plain", root / "mxfp4")
    return root / "plain", root / "mxfp4"


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("gpt-oss")
    save_model(random(DecoderConfig.from_dict(GPT_OSS)), root / "plain")
    quantize_folder(root / "plain", root / "mxfp4")
    return root / "plain", root / "mxfp4"


@torch.no_grad()
@pytest.mark.parametrize("layout", ["k3", "gpt_oss"])
def test_a_packed_model_computes_what_the_decoded_one_does(layout: str, request: pytest.FixtureRequest) -> None:
    plain, folder = request.getfixturevalue(layout)
    decoded, packed = load_model(folder).eval(), load_packed(folder)
    wanted, found = decoded(IDS).logits, packed(IDS).logits
    assert (found - wanted).abs().max() < 2e-5 * wanted.abs().max()
    assert (load_model(plain).eval()(IDS).logits - wanted).abs().max() > 1e-3  # quantising did something
    experts = sum(p.numel() for n, p in decoded.named_parameters() if n.endswith((".gate_up", ".down")))
    assert packed_bytes(packed) == experts * 17 // 32
    assert not any(n.endswith((".gate_up", ".down")) for n, _ in packed.named_parameters())


@torch.no_grad()
@pytest.mark.parametrize("layout", ["k3", "gpt_oss"])
def test_packing_in_memory_is_what_the_folder_holds(layout: str, request: pytest.FixtureRequest) -> None:
    plain, folder = request.getfixturevalue(layout)
    own, read = pack(load_model(plain).eval()), load_packed(folder)
    mine, theirs = own.state_dict(), read.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name


@torch.no_grad()
def test_transformers_opens_the_gpt_oss_layout_with_the_same_logits(gpt_oss: tuple[Path, Path]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = transformers.GptOssForCausalLM.from_pretrained(
        gpt_oss[1],
        dtype=torch.float32,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        attn_implementation="eager",
    ).eval()
    wanted, found = theirs(IDS).logits, load_packed(gpt_oss[1])(IDS).logits
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_both_layouts_hold_the_same_bytes(k3: tuple[Path, Path]) -> None:
    """An expert matrix of one layout, written and read in the other, comes back bit for bit."""
    from overland.model.packed import GPT_OSS_ENDS, Halves, Pair

    files = load_file(k3[1] / "model.safetensors")
    base = "model.layers.1.block_sparse_moe.experts"
    parts = [[files[f"{base}.{e}.w2.weight_{end}"] for e in range(16)] for end in ("packed", "scale")]
    stacked = Pair(torch.stack(parts[0]), torch.stack(parts[1]), stacked=True)
    written = stacked.released("layer.experts.down_proj")
    assert {n: tuple(t.shape) for n, t in written.items()} == {
        "layer.experts.down_proj_blocks": (16, 64, 2, 16),
        "layer.experts.down_proj_scales": (16, 64, 2),
    }
    halves = Halves()
    assert halves.add("layer.experts.down_proj_scales", written[f"layer.experts.down_proj{GPT_OSS_ENDS[1]}"]) is None
    back = halves.add("layer.experts.down_proj_blocks", written["layer.experts.down_proj_blocks"])
    assert back is not None
    assert torch.equal(back.packed, stacked.packed)
    one = Pair(parts[0][5], parts[1][5], stacked=False)
    assert torch.equal(back.decoded()[5].T, one.decoded())


@torch.no_grad()
def test_any_linear_can_be_quantised_by_name(k3: tuple[Path, Path], tmp_path: Path) -> None:
    targets = ("experts", "shared_experts.down_proj", "model.layers.*.self_attn.o_proj")
    report = quantize_folder(k3[0], tmp_path / "more", targets=targets)
    by_hand = load_model(k3[0]).eval()
    in_memory = quantize_model(by_hand, targets)
    packed = load_packed(tmp_path / "more")
    kinds = {name.rsplit(".", 1)[-1] for name, m in packed.named_modules() if isinstance(m, PackedLinear)}
    assert kinds == {"down_proj", "o_proj"}
    assert {t.name for t in report.tensors} == {t.name for t in in_memory.tensors}
    wanted = by_hand(IDS).logits
    assert torch.equal(load_model(tmp_path / "more").eval()(IDS).logits, wanted)
    assert (packed(IDS).logits - wanted).abs().max() < 2e-5 * wanted.abs().max()
    with pytest.raises(UsageError, match="targets: 'o_porj' names no Linear of the model; did you mean o_proj"):
        quantize_folder(k3[0], tmp_path / "none", targets=("o_porj",))
    assert not (tmp_path / "none").exists()


def test_folders_that_hold_nothing_packed_or_something_broken_are_named(
    k3: tuple[Path, Path], gpt_oss: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="holds nothing in MXFP4"):
        load_packed(k3[0])
    tensors = load_file(gpt_oss[1] / "model.safetensors")
    (tmp_path / "config.json").write_bytes((gpt_oss[1] / "config.json").read_bytes())
    broken = next(name for name in tensors if name.endswith("_blocks"))
    save_file({**tensors, broken: tensors[broken][:, :, :, :8].contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(BrokenFileError, match=r"_blocks' U8 .*are not MXFP4"):
        load_packed(tmp_path)
    nan = {name: t.fill_(255) if name.endswith("down_proj_scales") else t for name, t in tensors.items()}
    save_file(nan, tmp_path / "model.safetensors")
    with pytest.raises(BrokenFileError, match="down_proj' holds values that are not finite"):
        load_packed(tmp_path)


MEASURE = """
import resource, sys, torch
from overland.transform import load_packed
torch.set_num_threads(1)
if sys.argv[2] == "run":
    with torch.no_grad():
        load_packed(sys.argv[1], torch.bfloat16)(torch.arange(64).view(1, 64) % 64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_loading_and_running_never_hold_the_experts_in_bf16(tmp_path: Path) -> None:
    """Peak memory beyond that of the imports stays below the packed model and half of the experts in bf16."""
    config = preset("nano", num_experts=64, moe_intermediate_size=512, routed_expert_hidden_size=128, vocab_size=64)
    model = Decoder(config).bfloat16()
    experts = sum(p.nbytes for n, p in model.named_parameters() if ".experts." in n and "shared" not in n)
    others = sum(p.nbytes for p in model.parameters()) - experts
    save_model(model, tmp_path / "plain", shard_bytes=10_000_000)
    quantize_folder(tmp_path / "plain", tmp_path / "mxfp4")
    assert len(list((tmp_path / "mxfp4").glob("*.safetensors"))) > 3

    def peak(what: str) -> int:
        command = [sys.executable, "-c", MEASURE, str(tmp_path / "mxfp4"), what]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)

    used = peak("run") - peak("nothing")
    assert experts > 70e6
    assert used < experts * 17 / 64 + others + 0.5 * experts
