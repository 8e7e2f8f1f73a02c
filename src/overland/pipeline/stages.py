"""The quickstart's stages. Each reads its inputs from the run folder and leaves its outputs there.

Every rank calls every stage with the same arguments: a stage is a program that all ranks run together, and what only
one of them may do (write, serve) is left to rank 0.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overland.agent import ClientPolicy, Limits, LocalPolicy
from overland.agent.sandbox import choose_sandbox
from overland.agent.sandbox.base import Sandbox
from overland.chat import EFFORTS, XTML, Tokenizer, load_tokenizer
from overland.corpus import build, heldout_documents
from overland.engine import AsyncEngine, Engine, Sampling
from overland.environments import STARTERS, Task, load_environment
from overland.environments.wire import message_from_record
from overland.evaluate import Scores, baselines, evaluate_policy, suite
from overland.model import Decoder, initialise, load_model, preset, save_model
from overland.pipeline.oracles import oracle_dialogues, template_texts
from overland.pipeline.recipe import QuickstartRecipe
from overland.rl import train_rl
from overland.runs import (
    RunFolder,
    explain_disk_errors,
    progress,
    read_json,
    read_jsonl_zst,
    write_json,
    write_jsonl_zst,
)
from overland.serve import create_app
from overland.serve.lifecycle import background
from overland.train import Drilled, Ranks, open_loader, pretrain, sft
from overland.transform import quantize_folder

JUDGED = 0.95
"""The least share of an evaluation's episodes that must be judged: checkpoints are compared on the same tasks."""


@dataclass
class Context:
    """What a stage is called with."""

    recipe: QuickstartRecipe
    run: RunFolder
    ranks: Ranks
    resume: bool
    no_sandbox: bool

    @property
    def corpus(self) -> Path:
        """The corpus folder."""
        return self.run.path / "corpus"

    def model_folder(self, stage: str) -> Path:
        """The checkpoint that a stage leaves, in the Hugging Face layout; RL's is the run's model."""
        return self.run.model if stage == "rl" else self.run.path / "models" / stage

    def sandbox(self) -> Sandbox:
        """The sandbox that the shell runs in."""
        return choose_sandbox(self.no_sandbox)

    def tokenizer(self) -> Tokenizer:
        """The corpus's tokenizer."""
        return load_tokenizer(self.corpus)

    def save(self, model: Decoder, stage: str) -> Path:
        """Write a checkpoint with its tokenizer and the bill of materials of its text (rank 0)."""
        folder = self.model_folder(stage)
        if self.ranks.writes:
            with explain_disk_errors(folder):
                save_model(model, folder)
                self.tokenizer().save(folder)
                shutil.copyfile(self.corpus / "lineage.json", folder / "lineage.json")
                notice = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"
                if self.recipe.corpus.stdlib and notice.is_file():  # its licence asks that the notice goes along
                    shutil.copyfile(notice, folder / "LICENSE-PYTHON.txt")
        return folder

    def summary(self, **parts: Any) -> None:
        """Add figures to summary.json (rank 0); dictionaries are merged one level deep."""
        if not self.ranks.writes:
            return
        path = self.run.path / "summary.json"
        summary = read_json(path) if path.exists() else {}
        for name, value in parts.items():
            summary[name] = {**summary.get(name, {}), **value} if isinstance(value, dict) else value
        write_json(path, summary)


def corpus_stage(c: Context) -> dict[str, Any]:
    """Raw text to token shards and a tokenizer."""
    if c.ranks.writes:
        report = build(c.recipe.corpus, c.corpus, tokenizer_extra_text=template_texts(c.recipe.demonstrations))
        figures: dict[str, Any] = report.to_dict()
        c.run.metrics({"stage": "corpus", "step": 0, "corpus/tokens": report.train_tokens})
        c.summary(corpus=figures, tokens={"corpus": report.train_tokens})
    return {"corpus": "corpus"}


def pretrain_stage(c: Context) -> dict[str, Any]:
    """Next-token prediction on the corpus; held-out bits per byte beside gzip and a 5-gram model."""
    recipe, tokenizer = c.recipe, c.tokenizer()
    model = new_model(recipe, tokenizer)
    section = recipe.pretrain
    loader = open_loader(c.corpus, section, c.ranks.rank, c.ranks.world)
    drilled = Drilled(loader, section.drill_share, tokenizer.text_size, section.seed, c.ranks.rank, c.ranks.world)
    held_out = held_out_text(c)
    figures = pretrain(model, drilled, section, c.run, held_out=held_out, resume=c.resume)
    bits = {"before": figures["bpb_before"], "after": figures["bpb_after"]}
    if c.ranks.writes:
        train = [tokenizer.bytes_of(ids[1:].tolist()) for ids, _ in heldout_documents(c.corpus, "train")]
        bits |= baselines(train, [tokenizer.bytes_of(list(ids[1:])) for ids, _ in held_out])
        c.summary(bpb=bits, tokens={"pretrain": figures["tokens"]})
    return {"model": c.save(model, "pretrain")}


def sft_stage(c: Context) -> dict[str, Any]:
    """Imitation of the oracles on the easy levels."""
    model, tokenizer = load_model(c.model_folder("pretrain")), c.tokenizer()
    dialogues = oracle_dialogues(c.recipe.demonstrations, tokenizer, XTML())
    figures = sft(model, dialogues, c.recipe.sft, c.run, resume=c.resume)
    c.summary(tokens={"sft": figures["tokens"]})
    return {"model": c.save(model, "sft")}


def rl_stage(c: Context) -> dict[str, Any]:
    """GRPO over all domains, levels and efforts, from the SFT checkpoint."""
    model, tokenizer = load_model(c.model_folder("sft")), c.tokenizer()
    engine = Engine(model, max_batch=c.recipe.rl.live_episodes)
    tasksets = {name: load_environment(name) for name in STARTERS}
    sandbox = c.sandbox()
    result = train_rl(model, engine, tokenizer, tasksets, c.recipe.rl, c.run, sandbox=sandbox, resume=c.resume)
    c.summary(tokens={"rl": result.tokens}, rl={"steps": result.steps, "stopped": result.stopped})
    return {"model": c.save(model, "rl")}


def quantize_stage(c: Context) -> dict[str, Any]:
    """The routed experts to MXFP4, in the released layout."""
    target = c.model_folder("mxfp4")
    if c.ranks.writes:
        shutil.rmtree(target, ignore_errors=True)  # what a killed run left
        report = quantize_folder(c.model_folder("rl"), target, c.recipe.quantize.rule)
        c.summary(mxfp4={"relative_error": report.relative_error, "bytes_after": report.bytes_after})
    return {"model": target}


def evaluate_stage(c: Context, stage: str, efforts: Sequence[str], sampled: bool) -> dict[str, Any]:
    """Held-out tasks with the checkpoint of `stage`, greedy at each effort and, where asked, at temperature 1."""
    folder = c.model_folder(stage)
    engine = Engine(load_model(folder).eval(), max_batch=c.recipe.evaluate.concurrency)
    policy = policy_for(c, engine)
    tasks = held_out_tasks(c)
    by_effort = {effort: run_tasks(c, policy, tasks, effort, f"evaluate {stage} {effort}") for effort in efforts}
    best = by_effort["max"]
    found = {stage: best.held_out()}
    if sampled:
        drawn = run_tasks(c, policy, tasks, "max", f"evaluate {stage} sampled", temperature=1.0)
        found[f"{stage}_sampled"] = drawn.held_out()
    c.summary(held_out=found, levels={stage: best.levels()})
    if len(efforts) > 1:
        together = sum(by_effort.values(), Scores())
        c.summary(efforts=together.efforts())
    if c.ranks.writes:
        for effort, scores in by_effort.items():
            write_jsonl_zst(c.run.episodes / f"held-out-{stage}-{effort}.jsonl.zst", scores.records)
    return {}


def serve_stage(c: Context) -> dict[str, Any]:
    """The held-out tasks once more, over HTTP, through the official clients, against the quantised model."""
    if not c.ranks.writes:
        return {}
    folder = c.model_folder("mxfp4")
    engine = AsyncEngine(Engine(load_model(folder).eval(), max_batch=c.recipe.evaluate.concurrency))
    efforts = c.recipe.rl.efforts  # the server closes thinking where the policy in the process does
    budgets = {f"think_budget_{effort}": efforts.of(effort).think_tokens for effort in EFFORTS}
    settings = c.recipe.serve.model_copy(update=budgets)
    app = create_app(engine, c.tokenizer(), XTML(), model_name="overland", settings=settings)
    tasks = held_out_tasks(c)
    with background(app, settings) as url, progress("serve", len(tasks), "task") as bar:

        async def through(api: str, part: Sequence[Task]) -> Scores:
            policy = ClientPolicy(f"{url}/v1", "overland", api)
            try:
                return await evaluate_policy(
                    policy, part, "max", sampling_for(c, 0.0), limits_for(c), 64,
                    lambda _: bar.advance(1), sandbox=c.sandbox(),
                )  # fmt: skip
            finally:
                await policy.close()

        served = asyncio.run(through("openai", tasks[0::2])) + asyncio.run(through("anthropic", tasks[1::2]))
    served.require_judged(JUDGED)
    write_jsonl_zst(c.run.episodes / "held-out-served-max.jsonl.zst", served.records)
    c.summary(held_out={"served": served.held_out()}, served=same_as_in_process(c, served))
    return {}


def same_as_in_process(c: Context, served: Scores) -> dict[str, Any]:
    """How many served conversations are, word for word, those of the engine in the process."""

    def arguments(text: str) -> Any:
        try:
            found = json.loads(text)  # clients write the same object with other spaces
        except ValueError:
            return text
        # a call that was cut off: Anthropic's API has only objects, so the server wraps what was sampled
        return found["malformed_arguments"] if isinstance(found, dict) and "malformed_arguments" in found else found

    def talk(record: dict[str, Any]) -> list[Any]:
        messages = [message_from_record(node["message"]).to_openai() for node in record["traces"][0]["nodes"]]
        return [
            (
                m["role"],
                m.get("content") or "",
                m.get("reasoning_content") or "",
                [(c["function"]["name"], arguments(c["function"]["arguments"])) for c in m.get("tool_calls", [])],
            )
            for m in messages
        ]

    own = {r["task"]["key"]: talk(r) for r in read_jsonl_zst(c.run.episodes / "held-out-mxfp4-max.jsonl.zst")}
    same = sum(own.get(r["task"]["key"]) == talk(r) for r in served.records)
    return {"conversations": len(served.records), "same_as_in_process": same}


def held_out_text(c: Context, tokens: int = 50_000) -> list[tuple[list[int], int]]:
    """Held-out documents (ids, bytes) of about `tokens` tokens in all: what bits per byte are measured on."""
    chosen: list[tuple[list[int], int]] = []
    for ids, size in heldout_documents(c.corpus):
        if sum(len(d) for d, _ in chosen) + len(ids) <= tokens or not chosen:
            chosen.append((ids.tolist(), size))
    return chosen


def run_tasks(
    c: Context, policy: LocalPolicy, tasks: Sequence[Task], effort: str, label: str, temperature: float = 0.0
) -> Scores:
    """Every rank runs its share of the tasks; all get all scores, in the order of the tasks."""
    own, world = c.ranks.share(tasks), c.ranks.world
    section = c.recipe.evaluate
    with progress(label, len(tasks), "task") as bar:
        part = asyncio.run(evaluate_policy(
            policy, own, effort, sampling_for(c, temperature), limits_for(c), section.concurrency,
            lambda _: bar.advance(min(world, len(tasks) - bar.done)), sandbox=c.sandbox(),  # the others are as far
        ))  # fmt: skip
        parts = c.ranks.gather(part)
    order = [(parts[i % world], i // world) for i in range(len(tasks))]
    scores = Scores([p.outcomes[i] for p, i in order], [p.records[i] for p, i in order], max(p.seconds for p in parts))
    scores.require_judged(JUDGED)
    return scores


def held_out_tasks(c: Context) -> list[Task]:
    """The same tasks for every checkpoint."""
    section = c.recipe.evaluate
    return suite(STARTERS, section.tasks, section.levels, section.first_seed, section.max_turns)


def policy_for(c: Context, engine: Engine) -> LocalPolicy:
    """The engine as a policy under the recipe's thinking budgets."""
    efforts = c.recipe.rl.efforts
    budget = {effort: efforts.of(effort).think_tokens for effort in EFFORTS}
    return LocalPolicy(engine, c.tokenizer(), think_budget=budget)


def sampling_for(c: Context, temperature: float) -> Sampling:
    """How held-out episodes are sampled."""
    return Sampling(temperature=temperature, max_tokens=c.recipe.rl.turn_tokens, seed=c.recipe.seed)


def limits_for(c: Context) -> Limits:
    """Where held-out episodes end."""
    return Limits(max_turns=c.recipe.evaluate.max_turns, output_tokens=c.recipe.evaluate.output_tokens)


def new_model(recipe: QuickstartRecipe, tokenizer: Tokenizer) -> Decoder:
    """The recipe's preset with the tokenizer's vocabulary and special ids, freshly initialised."""
    config = preset(
        recipe.model.preset,
        vocab_size=tokenizer.vocab_size,
        bos_token_id=tokenizer.special("[BOS]"),
        eos_token_id=tokenizer.special("<|end_of_msg|>"),
        pad_token_id=tokenizer.special("[PAD]"),
    )
    return initialise(Decoder(config), recipe.model.initialiser, recipe.seed)
