"""What a quickstart would do, before it does it: the resolved recipe with token counts and expected time."""

from __future__ import annotations

from overland.config import dump_toml
from overland.pipeline.recipe import QuickstartRecipe

# Measured on two cores of an AMD EPYC (docs/benchmarks.md): CPU seconds.
PRETRAIN_TOKENS = 4200  # a second and rank, the nano model, packed text
SFT_TOKENS = 2900  # short dialogues
RL_TOKENS = 3100  # rollouts with their tools, the update and the checkpoints
EVALUATED_TOKENS = 2500  # rollouts of few tasks, which fill a batch badly
SERVED_TOKENS = 1100  # over HTTP, by one process
EPISODE_TOKENS = 180  # sampled in one episode
DIALOGUE_TOKENS = 265  # of one demonstration, its shared prefix left out
CORPUS_SECONDS_PER_MEGABYTE = 1.9


def dry_run(recipe: QuickstartRecipe) -> str:
    """The recipe as TOML with every default, then a table: tokens and expected seconds by stage."""
    recipe = recipe.seeded()
    rows = [("stage", "tokens", "seconds")]
    total = 0.0
    for name, (tokens, seconds) in expected(recipe).items():
        total += seconds
        rows.append((name, f"{tokens:,}", f"{seconds:.0f}"))
    rows.append(("all", "", f"{total:.0f}"))
    table = "\n".join(f"# {name:<14}{tokens:>12}{seconds:>10}" for name, tokens, seconds in rows)
    return f"{dump_toml(recipe)}\n# Expected on two quiet cores:\n{table}\n"


def expected(recipe: QuickstartRecipe) -> dict[str, tuple[int, float]]:
    """Tokens and wall seconds of every stage."""
    ranks = recipe.ranks
    pretrain, sft, rl, evaluate = recipe.pretrain, recipe.sft, recipe.rl, recipe.evaluate
    pretrained = pretrain.steps * pretrain.batch * pretrain.length
    dialogues = sft.steps * sft.batch * DIALOGUE_TOKENS
    sampled = rl.steps * rl.tasks_per_step * rl.group_size * EPISODE_TOKENS
    episodes = 3 * evaluate.tasks
    passes = 2 + len(evaluate.efforts) + (2 if evaluate.sampled else 0)
    measured = passes * episodes * EPISODE_TOKENS
    served = episodes * EPISODE_TOKENS
    return {
        "corpus": (int(recipe.corpus.max_megabytes * 5e5), recipe.corpus.max_megabytes * CORPUS_SECONDS_PER_MEGABYTE),
        "pretrain": (pretrained, pretrained / PRETRAIN_TOKENS / ranks + 5),
        "sft": (dialogues, dialogues / SFT_TOKENS / ranks + 5),
        "rl": (sampled, sampled / RL_TOKENS / ranks),
        "evaluate": (measured, measured / EVALUATED_TOKENS / ranks),
        "serve": (served, served / SERVED_TOKENS),
    }
