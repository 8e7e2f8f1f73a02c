"""The figures of a step, by domain and by effort, under the names that the run folder keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from overland.rl.samples import Group, Sample


def rollout_figures(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, success, tokens and failures of a batch of priced groups.

    `rl/reward` is what the algorithm saw (budgets and penalties included), `rl/success` what the verifier said.
    Means are over judged samples; a domain or an effort without any is left out rather than set to 0.
    """
    samples = [s for g in groups for s in g.samples]
    figures = {
        "rl/groups": float(len(groups)),
        "rl/groups_without_variance": _share([not g.has_variance for g in groups]),
        "rl/unjudged": _share([s.reward is None for s in samples]),
        "rl/parse_failures": _share([s.parse_errors > 0 for s in samples]),
        "rl/forked": _share([s.forked for s in samples]),
        "rl/over_budget": _share([s.over_budget for s in samples]),
        "rl/truncated": _share([s.truncated for s in samples]),
        "rl/episode_tokens": _share([s.output_tokens for s in samples]),
    }
    figures["rl/suspected"] = _share([bool(s.hacks) for s in samples])
    figures["rl/failed_infra"] = _share([s.failure == "infra" for s in samples])
    figures["rl/failed_data"] = _share([s.failure == "data" for s in samples])
    for kind in sorted({kind for s in samples for kind in s.hacks}):
        figures[f"rl/suspected/{kind}"] = _share([kind in s.hacks for s in samples])
    figures |= _means("rl/reward", groups, lambda s: s.reward or 0.0)
    figures |= _means("rl/success", groups, lambda s: float(s.success))
    figures |= _by("rl/tokens", groups, lambda g: g.effort, lambda s: float(s.output_tokens))
    figures |= _by("rl/thinking_tokens", groups, lambda g: g.effort, lambda s: float(s.thinking_tokens))
    figures |= _by("rl/over_budget", groups, lambda g: g.effort, lambda s: float(s.over_budget))
    return figures


def _means(name: str, groups: Sequence[Group], value: Callable[[Sample], float]) -> dict[str, float]:
    judged = [s for g in groups for s in g.judged]
    whole = {name: mean(map(value, judged))} if judged else {}
    return (
        whole
        | _by(name, groups, lambda g: g.domain, value)
        | _by(name, groups, lambda g: g.effort, value)
        | _by(name, groups, lambda g: f"{g.domain}/{g.level}", value)
        | _by(name, groups, lambda g: f"level/{g.level}", value)
    )


def _by(
    name: str, groups: Sequence[Group], key: Callable[[Group], str], value: Callable[[Sample], float]
) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for group in groups:
        values.setdefault(key(group), []).extend(value(s) for s in group.judged)
    return {f"{name}/{k}": mean(v) for k, v in sorted(values.items()) if v}


def _share(flags: Iterable[float]) -> float:
    flags = [float(f) for f in flags]
    return mean(flags) if flags else 0.0
