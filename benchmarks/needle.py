"""Facts planted anywhere in a context 16 times longer than top-k: does the indexer learn to find them?

    python -m benchmarks.needle [--quick] [--json OUT] [--chart docs/needle.svg]

A context is noise with facts ("name value") at random places; it ends with names to be answered. Two layers in K3's
order: KDA, which hands every token its predecessor and forgets within a few tokens, and sparse attention, which alone
reaches back. Both start near that solution, as after pretraining; the indexer starts from noise. Trained as DeepSeek-
V3.2 was: dense attention; a dense warm-up, in which the divergence between attention and indexer trains the indexer
alone; the sparse stage, everything on the kept keys.

What is measured: how often the value is recalled, by where its fact stood. Beside the trained selection: attention to
everything (what can be reached), the indexer as it was before warm-up, and the last top-k tokens in its place (what is
left where nothing is found). There is no peer: Transformers' indexers run without gradients and cannot be trained.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.line_svg import line_svg
from overland.model import Decoder, DecoderConfig, Replay, indexer_parameters, initialise
from overland.model.dsa import DSA
from overland.model.kda import KDA

NOISE, NAMES, VALUES, HALF = 24, 16, 16, 64  # kinds of tokens; half of the model's width
BINS = 8
Stage = Literal["dense", "sparse"]
FIELDS: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": NOISE + NAMES + VALUES,
    "hidden_size": 2 * HALF,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "intermediate_size": HALF,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "routed_expert_hidden_size": 32,
    "mla_use_output_gate": False,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 2 * HALF,
    "kv_lora_rank": 2 * HALF,
    "qk_nope_head_dim": HALF,
    "qk_rope_head_dim": 0,
    "v_head_dim": HALF,
    "max_position_embeddings": 1 << 16,
    "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1], "num_heads": 2, "head_dim": HALF // 2},
}


@dataclass(frozen=True)
class Task:
    """Contexts of `length` tokens, 16 times `topk`, with `facts` in them; all their names are asked for at the end."""

    topk: int
    facts: int = 8

    @property
    def length(self) -> int:
        return 16 * self.topk

    def draw(self, rows: int, gen: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """ids [B, T], the places [B, facts] of the asked names (the value comes next), each fact's depth in [0, 1)."""
        T = self.length
        ids = torch.randint(NOISE, (rows, T + 2 * self.facts), generator=gen)
        slots = torch.rand(rows, T // 2, generator=gen).argsort(-1)[:, : self.facts]
        names = torch.rand(rows, NAMES, generator=gen).argsort(-1)[:, : self.facts] + NOISE
        values = torch.randint(VALUES, (rows, self.facts), generator=gen) + NOISE + NAMES
        asked = T + 2 * torch.arange(self.facts).expand(rows, -1)
        for at in (2 * slots, asked):
            ids.scatter_(1, at, names).scatter_(1, at + 1, values)
        return ids, asked, 2 * slots / T


@torch.no_grad()
def build(topk: int, seed: int = 0) -> Decoder:
    """The model at its start: small noise, and on it what a token is in the first half of the stream, what came before
    it in the second, and attention from the first half to the second."""
    config = DecoderConfig.from_dict({**FIELDS, "dsa_config": {"num_heads": 4, "head_dim": 32, "topk": topk}})
    model, gen = initialise(Decoder(config), "standard", seed), torch.Generator().manual_seed(seed)
    eye, nothing = torch.eye(HALF), torch.zeros(HALF, HALF)
    one, two = torch.cat([eye, nothing], 1), torch.cat([nothing, eye], 1)  # the stream's first half, its second
    tokens = torch.linalg.qr(torch.randn(HALF, HALF, generator=gen)).Q[: config.vocab_size] * HALF**0.5
    model.model.embed_tokens.weight.copy_(tokens @ one)
    model.lm_head.weight.copy_(0.2 * tokens @ one)
    for module in model.modules():
        if isinstance(module, KDA):
            for proj in (module.q_proj, module.k_proj, module.v_proj):
                proj.weight += one
            module.o_proj.weight += two.T
            for conv, back in ((module.q_conv1d, 0), (module.k_conv1d, 0), (module.v_conv1d, 1)):
                conv.weight.mul_(0.05)[..., conv.weight.shape[-1] - 1 - back] += 1
            module.dt_bias.fill_(3.0)
        elif isinstance(module, DSA):
            module.q_a_proj.weight += torch.eye(2 * HALF)
            module.kv_a_proj_with_mqa.weight += torch.eye(2 * HALF)
            module.q_b_proj.weight += 2 * torch.cat([one, one])
            module.kv_b_proj.weight += torch.cat([two, one, two, one])  # of each head its keys, then its values
            module.o_proj.weight += torch.cat([one.T, one.T], 1)
    return model


def run(model: Decoder, task: Task, rows: int, gen: torch.Generator, **options: Any) -> tuple[Any, Tensor, Tensor]:
    """The model's output at the asked names, the values that are right, and the depths of their facts; [B * facts]."""
    ids, asked, depth = task.draw(rows, gen)
    where = torch.zeros(ids.shape, dtype=torch.bool).scatter_(1, asked, True)
    return model(ids, where=where, **options), ids.gather(1, asked + 1).flatten(), depth.flatten()


def train(
    model: Decoder, task: Task, steps: int, rows: int, lr: float, stage: Stage, alone: bool, gen: torch.Generator
) -> dict[str, float]:
    """One stage; `alone`: the indexer alone, on its divergence. Returns the figures of its last step."""
    indexer = {id(p) for p in indexer_parameters(model)}
    chosen = [p for p in model.parameters() if stage == "sparse" or (id(p) in indexer) == alone]
    optimiser = torch.optim.AdamW(chosen, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    figures: dict[str, float] = {}
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 5) * (1 - 0.9 * step / steps)
        out, wanted, _ = run(model, task, rows, gen, indexer_stage=stage)
        loss, record = F.cross_entropy(out.logits, wanted), out.aux.indexer[0]
        at_names = record.kl[:, -2 * task.facts :: 2].mean()  # few places look for something: half the weight is theirs
        divergence = record.kl.mean() + at_names
        optimiser.zero_grad()
        (divergence if alone else loss + divergence if stage == "sparse" else loss).backward()
        torch.nn.utils.clip_grad_norm_(chosen, 1.0)
        optimiser.step()
        figures = {"loss": loss.item(), "divergence": at_names.item()}
        if record.mass is not None:
            figures["mass"] = record.mass[:, -2 * task.facts :: 2].mean().item()
    return figures


@torch.no_grad()
def recall(model: Decoder, task: Task, rows: int, **options: Any) -> list[float]:
    """Share of values recalled by their facts' depth, BINS bins from the beginning of the context to its end."""
    out, wanted, depth = run(model, task, rows, torch.Generator().manual_seed(99), **options)
    right, bins = (out.logits.argmax(-1) == wanted).float(), (depth * BINS).long()
    return [right[bins == b].mean().item() for b in range(BINS)]


def last_keys(task: Task, rows: int) -> Replay:
    """The last top-k tokens for every query, instead of the indexer's choice."""
    at = torch.arange(task.length + 2 * task.facts)[:, None] - torch.arange(task.topk - 1, -1, -1)
    return Replay(selected=[at.masked_fill(at < 0, -1).expand(rows, -1, -1)])


def measure(task: Task, steps: tuple[int, int, int], rows: int, held_out: int, seed: int = 0) -> dict[str, Any]:
    """Train through the three stages and measure by depth: a curve for each way of choosing keys."""
    gen, model = torch.Generator().manual_seed(seed), build(task.topk, seed)
    stages = {"dense": train(model, task, steps[0], rows, 1e-3, "dense", False, gen)}
    curves = {"indexer before warm-up": recall(model, task, held_out)}
    stages["warm-up"] = train(model, task, steps[1], rows, 1e-2, "dense", True, gen)
    curves["after warm-up"] = recall(model, task, held_out)
    stages["sparse"] = train(model, task, steps[2], rows, 1e-3, "sparse", False, gen)
    curves["trained selection"] = recall(model, task, held_out)
    curves["attention to everything"] = recall(model, task, held_out, indexer_stage="dense")
    curves[f"the last {task.topk} tokens"] = recall(model, task, held_out, replay=last_keys(task, held_out))
    return {"topk": task.topk, "length": task.length, "stages": stages, "curves": curves}


def chart(found: dict[str, Any], path: Path) -> None:
    """Recall by depth, a line for each way of choosing."""
    depth = [100 * (b + 0.5) / BINS for b in range(BINS)]
    lines = {name: [(x, 100 * y) for x, y in zip(depth, ys, strict=True)] for name, ys in found["curves"].items()}
    x_label = f"depth of the fact in {found['length']:,} tokens, %; top-k {found['topk']}"
    axes = ((0, 25, 50, 75, 100), (0, 25, 50, 75, 100), x_label, "values recalled, %")
    path.write_text(line_svg(lines, *axes), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="256 tokens and top-k 16 instead of 1,024 and 64")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    task = Task(16 if options.quick else 64)
    found = measure(task, (3, 40, 10), 2, 48)
    print(
        f"{task.length:,} tokens, top-k {task.topk}, {task.facts} facts; {time.process_time() - start:.0f} CPU seconds"
    )
    for stage, figures in found["stages"].items():
        print(f"{stage:10}" + "".join(f"{name} {value:8.3f}   " for name, value in figures.items()))
    print(f"\n{'recalled, by depth, %':26}" + "".join(f"{100 * b // BINS:6}" for b in range(BINS)))
    for name, curve in found["curves"].items():
        print(f"{name:26}" + "".join(f"{100 * y:6.1f}" for y in curve))
    if options.chart:
        chart(found, options.chart)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
