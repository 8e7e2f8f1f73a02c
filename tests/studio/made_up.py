"""A run folder as a finished quickstart leaves it, with made-up curves and real tasks, tools, tokens and wire records.

`python -m tests.studio.made_up DIR` writes one and its report, to look at.
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers

from overland.chat import XTML, Tokenizer, build_tokenizer
from overland.environments import load_environment
from overland.environments.episode import Episode, MessageNode, ModelCall, Trace
from overland.environments.verify import Reward
from overland.evaluate.intervals import wilson
from overland.runs import RunFolder, write_json, write_jsonl_zst

DOMAINS = ("terminal", "finance", "web")
EFFORTS = ("low", "high", "max")
STAGES = ("sft", "rl", "mxfp4", "served")
RATE = {
    "sft": {"terminal": 0.55, "finance": 0.43, "web": 0.61},
    "rl": {"terminal": 0.88, "finance": 0.81, "web": 0.91},
    "mxfp4": {"terminal": 0.87, "finance": 0.79, "web": 0.91},
    "served": {"terminal": 0.87, "finance": 0.79, "web": 0.9},
}


def make_run(path: Path, seed: int = 0, episodes_each: int = 8) -> Path:
    """Write the whole folder and return its path."""
    rng = random.Random(seed)
    run = RunFolder(path)
    run.write("recipe.toml", RECIPE)
    write_json(path / "manifest.json", {
        "overland": "0.1.0", "packages": {"torch": "2.13.0", "numpy": "2.4.6"}, "seed": seed, "cpu": "2 cores",
    })  # fmt: skip
    for row in made_up_metrics(rng):
        run.metrics(row)
    write_json(path / "summary.json", made_up_summary())
    tokenizer = small_tokenizer()
    tokenizer.save(path / "model")
    for stage in ("sft", "rl"):
        rows = [
            episode(tokenizer, domain, level, rng, solved=rng.random() < RATE[stage][domain], effort=effort).to_record()
            for domain in DOMAINS
            for effort in EFFORTS
            for level in rng.choices((0, 1, 2, 3), k=episodes_each // 3 + 1)
        ]
        write_jsonl_zst(path / "episodes" / f"{stage}-heldout.jsonl.zst", rows)
    return path


def small_tokenizer() -> Tokenizer:
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=640, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    words = "message role think response tools call argument assistant user tool system thinking_effort"
    prompts = [t.prompt for d in DOMAINS for level in (0, 1) for t in _some(d, level)]
    bpe.train_from_iterator([words, *prompts] * 3, trainer)
    return build_tokenizer(bpe)


def _some(domain: str, level: int) -> list[Any]:
    return [load_environment(domain).task("train", level, seed) for seed in range(30)]


def episode(
    tokenizer: Tokenizer, domain: str, level: int, rng: random.Random, *, solved: bool, effort: str = "high"
) -> Episode:
    """The oracle's run of a held-out task as a policy's episode; where not solved, with another answer at the end."""
    task = load_environment(domain).task("held_out", level, rng.randrange(10_000))
    messages = task.oracle_conversation(effort)
    if not solved:
        messages[-1] = replace(messages[-1], content="i do not know")
    trace = Trace(
        id=f"trace-{rng.randrange(10**9)}", effort=effort, model="nano", stop="answered", tools=task.tool_specs()
    )
    template, before = XTML(), 0
    for index, message in enumerate(messages):
        segments = template.render(messages[: index + 1], task.tool_specs(), effort=effort, generate=False)
        encoded = template.encode(segments, tokenizer)
        ids, mask = encoded.ids[before:], encoded.trained[before:]
        before = len(encoded.ids)
        ours = message.role == "assistant"
        mask = [ours and on for on in mask]
        forced = [False] * len(ids)
        if ours and effort == "low" and index == 1:
            at = mask.index(True)
            for i in range(at, min(at + 5, len(ids))):
                forced[i], mask[i] = True, False
        logprobs = [-abs(rng.gauss(0, 0.3)) for on in mask if on]
        parent = index - 1 if index else None
        trace.nodes.append(MessageNode(message, parent, ours, ids, mask, logprobs, forced))
        if ours:
            trace.calls.append(ModelCall(index, "stop", before - len(ids), sum(mask), len(message.reasoning) // 3))
    by_answer = task.outcome == "answer"
    trace.dimensions = {
        "answer": Reward(float(solved), role="reward" if by_answer else "gate"),
        "state": Reward(1.0, role="gate" if by_answer else "reward"),
        "harm": Reward(0.0, role="monitor"),
    }
    trace.reward = float(solved)
    data = {"id": task.id, "domain": domain, "split": task.split, "level": level, "seed": task.seed, "kind": task.kind}
    return Episode(f"episode-{rng.randrange(10**9)}", domain, {**data, "prompt": task.prompt}, [trace])


def attack(words: str) -> dict[str, Any]:
    """An episode in which every string that a model, tool or task can choose is `words`."""
    messages = [
        {"role": "system", "content": words},
        {"role": "user", "content": [{"type": "text", "text": words}]},
        {"role": "assistant", "content": words, "reasoning_content": words,
         "tool_calls": [{"id": words, "name": words, "arguments": words}]},
        {"role": "tool", "name": words, "content": words, "tool_call_id": words},
        {"role": words, "content": words},
    ]  # fmt: skip
    nodes = [{"parent": i - 1 if i else None, "message": m, "sampled": False} for i, m in enumerate(messages)]
    return {
        "id": words, "env": {"id": words}, "errors": [],
        "task": {"type": words, "key": words, "data": {"id": words, "domain": words}},
        "traces": [{"id": words, "nodes": nodes, "rewards": {words: {"score": 1.0, "weight": 1.0}},
                    "stop_condition": words, "info": {"overland": {"effort": words}}, "errors": []}],
    }  # fmt: skip


def made_up_metrics(rng: random.Random) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(320):
        row: dict[str, Any] = {"stage": "pretrain", "step": step}
        row["train/loss"] = 2.1 + 3.9 * math.exp(-step / 60) + rng.gauss(0, 0.07)
        row["moe/load_max_over_mean"] = 1.25 + 1.4 * math.exp(-step / 30) + abs(rng.gauss(0, 0.05))
        if step % 80 == 0 or step == 319:
            row["train/bpb_heldout"] = 2.35 + 4.6 * math.exp(-step / 60)
        if step == 319:
            for layer in (0, 1, 2):
                load = [abs(rng.gauss(1, 0.18)) for _ in range(16)]
                if layer == 1:
                    load[3], load[9] = 0.03, 2.3
                row[f"moe/shares/{layer}"] = [value / sum(load) for value in load]
        rows.append(row)
    rows[141]["train/loss"] = 5.2
    message = "step 141: loss 5.2 is 9.1 deviations above the running median 2.6. If they repeat, lower lr."
    alarm = {"alarm/kind": "loss_spike", "alarm/value": 5.2, "alarm/message": message}
    rows.insert(142, {"stage": "pretrain", "step": 141, **alarm})
    rows.append({"stage": "rl", "step": 0, "rl/b0/web/0": 33.0})
    rows += [{"stage": "more_sft", "step": step, "sft/loss": 9.9} for step in range(50)]
    for step in range(200):
        rows.append(
            {"stage": "sft", "step": step, "sft/loss": 0.05 + 2.4 * math.exp(-step / 25) + abs(rng.gauss(0, 0.03))}
        )
    for step in range(60):
        row = {"stage": "rl", "step": step + 1, "rl/groups": 16.0}
        for domain in DOMAINS:
            start, end = RATE["sft"][domain] - 0.12, RATE["rl"][domain]
            success = start + (end - start) * (1 - math.exp(-step / 18)) + rng.gauss(0, 0.05)
            row[f"rl/success/{domain}"] = min(1.0, max(0.0, success))
            row[f"rl/success/{domain}/0"] = row[f"rl/success/{domain}"]
            row[f"rl/reward/{domain}"] = row[f"rl/success/{domain}"] - abs(rng.gauss(0.03, 0.02))
        for effort, (start, end) in {"low": (58, 40), "high": (66, 61), "max": (92, 101)}.items():
            row[f"rl/success/{effort}"] = 0.5
            row[f"rl/tokens/{effort}"] = start + (end - start) * step / 60 + rng.gauss(0, 3)
        row["rl/groups_without_variance"] = min(1.0, max(0.0, 0.3 + step / 200 + rng.gauss(0, 0.08)))
        row["rl/mismatch_kl"] = abs(rng.gauss(0, 2e-6))
        row["rl/entropy"] = 0.3 * math.exp(-step / 30) + 0.08 + abs(rng.gauss(0, 0.01))
        row["moe/load_max_over_mean"] = 1.35 + abs(rng.gauss(0, 0.06))
        rows.append(row)
    return rows


def scored(rate: float, n: int) -> dict[str, float]:
    interval = wilson(round(min(1.0, rate) * n), n)
    return {"success": interval.estimate, "low95": interval.low, "high95": interval.high, "n": n}


def made_up_summary() -> dict[str, Any]:
    held_out = {
        stage: {"all": scored(sum(rates.values()) / 3, 900), **{d: scored(r, 300) for d, r in rates.items()}}
        for stage, rates in RATE.items()
    }
    seconds = {
        "corpus": 9.1,
        "pretrain": 96.0,
        "sft": 61.5,
        "rl": 214.0,
        "quantise": 2.4,
        "evaluate": 78.0,
        "served": 31.0,
    }
    efforts = {"low": (0.71, 39), "high": (0.82, 61), "max": (0.87, 103)}
    return {
        "held_out": held_out,
        "efforts": {e: {**scored(r, 900), "tokens": t} for e, (r, t) in efforts.items()},
        "bpb": {"before": 7.02, "after": 2.37, "gzip": 2.03, "kn5": 1.79},
        "seconds": seconds,
        "cpu_seconds": {stage: value * 0.97 for stage, value in seconds.items()},
        "tokens": {"pretrain": 655_360, "sft": 480_000, "rl": 1_240_000},
        "levels": {"rl": {d: {str(k): scored(RATE["rl"][d] + 0.09 - 0.07 * k, 75) for k in range(4)} for d in DOMAINS}},
    }  # fmt: skip


RECIPE = """\
# the resolved recipe
minutes = 10
seed = 0

[model]
preset = "nano"

[rl]
steps = 60          # <script>alert("a comment")</script>
"""


if __name__ == "__main__":
    from overland.studio import write_report

    print(write_report(make_run(Path(sys.argv[1]))))
