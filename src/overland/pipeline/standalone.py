"""One stage alone, from a recipe of its own: for whoever brings the corpus, the conversations or the model.

Each job leaves a run folder like the quickstart's, with OUT/model in the Hugging Face layout.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, field_validator

from overland.chat import XTML, Tokenizer, load_tokenizer
from overland.config import Section, dump_toml, load_recipe
from overland.corpus import CorpusSection, heldout_documents
from overland.engine import Engine
from overland.environments import DOMAINS, STARTERS, load_environment
from overland.errors import UsageError
from overland.model import PRESETS, Decoder, initialise, load_model, preset, save_model
from overland.pipeline.conversations import held_out_part, read_conversations
from overland.pipeline.oracles import OracleSection, oracle_dialogues
from overland.rl import RLSection, train_rl
from overland.runs import RunFolder, atomic_write, read_json, write_json
from overland.train import Drilled, PretrainSection, SFTSection, open_loader
from overland.train import pretrain as pretrain_stage
from overland.train import sft as sft_stage
from overland.transform import LoRASection, apply_lora, remove_lora, save_lora

COMPANIONS = ("lineage.json", "LICENSE", "NOTICE")


class CorpusRecipe(Section):
    """A corpus alone."""

    corpus: CorpusSection = CorpusSection()
    """From raw text to token shards."""


class PretrainRecipe(Section):
    """Pretraining alone, on a corpus that `overland corpus build` made."""

    corpus: str
    """The corpus folder. Its tokenizer becomes the model's."""
    model: str = "nano"
    """A preset, freshly initialised, or a model folder to go on with."""
    initialiser: str = "induction"
    """How a preset starts; see docs/decisions for why `induction`."""
    device: str = "cpu"
    """Where it is trained: cpu, or cuda where there is one."""
    pretrain: PretrainSection = PretrainSection()
    """Pretraining on packed text."""


class SFTRecipe(Section):
    """Supervised tuning alone."""

    model: str
    """The model folder to start from."""
    data: str = ""
    """A JSON Lines file of conversations, one object a line: `messages` and, where there are, `tools` and `effort`, in
    OpenAI's form. Empty: demonstrations that the oracles of the environments make."""
    too_long: Literal["refuse", "drop"] = "refuse"
    """What becomes of a conversation that is longer than the model's context: the run is refused, or it is left out
    and counted. Nothing is cut: half an answer teaches to stop half way."""
    held_out: float = Field(default=0.05, ge=0, lt=0.5)
    """Share of the conversations that are measured instead of learned."""
    oracles: OracleSection = OracleSection()
    """Which demonstrations the oracles make, where `data` is empty."""
    device: str = "cpu"
    """Where it is trained: cpu, or cuda where there is one."""
    sft: SFTSection = SFTSection()
    """Supervised tuning on dialogues."""
    lora: LoRASection | None = None
    """Train an adapter instead of the model: a table `[lora]`. OUT/adapter then holds it in PEFT's layout and OUT/model
    the model with it merged in. LoRA wants about ten times the learning rate."""


class RLRecipe(Section):
    """Reinforcement learning alone."""

    model: str
    """The model folder to start from. It must solve some of the tasks already."""
    domains: tuple[str, ...] = STARTERS
    """The domains that are trained jointly."""
    rl: RLSection = RLSection()
    """Rollouts, advantages, budgets, update."""
    lora: LoRASection | None = None
    """Train an adapter instead of the model: a table `[lora]`. OUT/adapter then holds it in PEFT's layout and OUT/model
    the model with it merged in. LoRA wants about ten times the learning rate."""

    @field_validator("domains")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in value if name not in DOMAINS]
        if unknown or not value or len(set(value)) < len(value):
            raise ValueError(f"give different ones of {', '.join(DOMAINS)}")
        return value


def pretrain(recipe: PretrainRecipe, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Run the stage and return its figures. Raises UsageError before anything is written where the input is wrong."""
    corpus = Path(recipe.corpus)
    if not (corpus / "index.json").is_file():
        raise UsageError(f"corpus = '{corpus}' is not a corpus folder; make one with: overland corpus build")
    check_place(out, recipe, resume)
    tokenizer = load_tokenizer(corpus)
    model = _model_for(recipe, tokenizer)
    section = recipe.pretrain
    loader = open_loader(corpus, section)
    run = _open(out, recipe)
    if (done := run.stage_done("pretrain")) is not None and resume:
        return done
    documents = [(ids.tolist(), size) for ids, size in heldout_documents(corpus)]
    drilled = Drilled(loader, section.drill_share, tokenizer.text_size, section.seed)
    figures = pretrain_stage(model, drilled, section, run, held_out=documents, resume=resume)
    return _finish(run, "pretrain", model, tokenizer, corpus, figures)


def sft(recipe: SFTRecipe, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Run the stage and return its figures."""
    check_place(out, recipe, resume)
    source = _folder(recipe.model)
    tokenizer = load_tokenizer(source)
    model = load_model(source, device=_device(recipe.device))
    context = model.config.max_position_embeddings
    if recipe.data:
        dialogues = read_conversations(Path(recipe.data), tokenizer, context, recipe.too_long)
    else:
        dialogues = oracle_dialogues(recipe.oracles, tokenizer, XTML())
    learned, kept_out = held_out_part(dialogues, recipe.held_out)
    run = _open(out, recipe)
    if (done := run.stage_done("sft")) is not None and resume:
        return done
    section = recipe.sft
    if recipe.lora is not None:
        apply_lora(model, recipe.lora)
        section = section.model_copy(update={"balance": "none"})  # the router's bias is the base model's
    figures = sft_stage(model, learned, section, run, held_out=kept_out, resume=resume)
    return _finish(run, "sft", model, tokenizer, source, figures, recipe.lora)


def rl(recipe: RLRecipe, out: Path, *, resume: bool = False, no_sandbox: bool = False) -> dict[str, Any]:
    """Run the stage and return its figures."""
    from overland.agent.sandbox import choose_sandbox

    check_place(out, recipe, resume)
    source = _folder(recipe.model)
    tokenizer = load_tokenizer(source)
    model = load_model(source)
    tasksets = {name: load_environment(name) for name in recipe.domains}
    sandbox = choose_sandbox(no_sandbox) if any(t.runs_commands for t in tasksets.values()) else None
    run = _open(out, recipe)
    if (done := run.stage_done("rl")) is not None and resume:
        return done
    if recipe.lora is not None:
        apply_lora(model, recipe.lora)
    engine = Engine(model, max_batch=recipe.rl.live_episodes)
    result = train_rl(model, engine, tokenizer, tasksets, recipe.rl, run, sandbox=sandbox, resume=resume)
    figures = {
        "steps": result.steps,
        "stopped": result.stopped,
        "tokens": result.tokens,
        "cpu_seconds": round(result.cpu_seconds, 1),
        "success": result.figures.get("rl/success"),
        "reward": result.figures.get("rl/reward"),
    }
    return _finish(run, "rl", model, tokenizer, source, figures, recipe.lora)


def _folder(model: str) -> Path:
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise UsageError(f"model = '{model}' is not a model folder (no config.json); a run leaves one at RUN/model")
    return folder


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise UsageError(
            f"device = {name!r} cannot be used here ({why}); valid: cpu, or cuda where there is one"
        ) from None
    return device


def _model_for(recipe: PretrainRecipe, tokenizer: Tokenizer) -> Decoder:
    device = _device(recipe.device)
    if recipe.model in PRESETS and not Path(recipe.model).exists():
        config = preset(
            recipe.model,
            vocab_size=tokenizer.vocab_size,
            bos_token_id=tokenizer.special("[BOS]"),
            eos_token_id=tokenizer.special("<|end_of_msg|>"),
            pad_token_id=tokenizer.special("[PAD]"),
        )
        return initialise(Decoder(config), recipe.initialiser, recipe.pretrain.seed).to(device)
    model = load_model(_folder(recipe.model), device=device)
    if load_tokenizer(recipe.model).encode("overland 42") != tokenizer.encode("overland 42"):
        raise UsageError(
            f"model = '{recipe.model}' has another tokenizer than corpus = '{recipe.corpus}'; its tokens would mean "
            "something else"
        )
    return model


def check_place(out: Path, recipe: Section, resume: bool) -> None:
    """A run that is there is continued only with `resume`, and only under its own recipe. Raises UsageError.

    A recipe that an older version wrote is the same where what it does not name has its default.
    """
    if not out.is_dir() or all(path.suffix == ".tmp" for path in out.iterdir()):  # a kill before anything was done
        return
    if not resume:
        raise UsageError(f"--out {out}: is not empty; continue it with --resume, or choose another folder")
    written = out / "recipe.toml"
    if not written.is_file() or load_recipe(type(recipe), written) != recipe:
        raise UsageError(f"--resume: this recipe is not the one in {written}; give the same RECIPE and --set as before")


def make_place(out: Path) -> None:
    """Make the run's folder before processes are started for it. Raises UsageError where that is impossible."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be made or written ({error.strerror}); choose another folder") from error


def _open(out: Path, recipe: Section) -> RunFolder:
    make_place(out)
    run = RunFolder(out)
    atomic_write(out / "recipe.toml", dump_toml(recipe))
    run.write_manifest({"job": type(recipe).__name__.removesuffix("Recipe").lower()})
    return run


def _finish(
    run: RunFolder,
    stage: str,
    model: Decoder,
    tokenizer: Tokenizer,
    source: Path,
    figures: dict[str, Any],
    lora: LoRASection | None = None,
) -> dict[str, Any]:
    """Save the model with its tokenizer and what is known of its text, and record the stage."""
    if lora is not None:
        save_lora(model, lora, run.path / "adapter", base=str(source))
        remove_lora(model)
    save_model(model, run.model)
    tokenizer.save(run.model)
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, run.model / name)
    plain = {name: value for name, value in figures.items() if not isinstance(value, dict)}
    summary = read_json(run.path / "summary.json") if (run.path / "summary.json").exists() else {}
    write_json(run.path / "summary.json", {**summary, stage: figures})
    run.finish_stage(stage, {**plain, "model": "model"})
    return {**plain, "model": str(run.model)}
