"""What is asked of the engine and what comes back, token by token."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random

from torch import Tensor

from overland.engine.constraint import Constraint
from overland.engine.images import FIRST, Held
from overland.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 leave the distribution whole.

    In this order: `logit_bias` and the penalties change the logits (presence and frequency count the tokens generated,
    repetition the prompt's as well), a constraint masks them, temperature divides them, top-k, top-p and min-p (a
    share of the most likely token's probability) cut the tail. `top_logprobs` asks for that many alternatives a token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise UsageError(f"temperature = {self.temperature} is out of range; valid: 0 (greedy) to 100")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p = {self.top_p} is out of range; valid: above 0, at most 1")
        if self.top_k < 0:
            raise UsageError(f"top_k = {self.top_k} is negative; valid: 0 (off) or more")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens = {self.max_tokens}; valid: 1 or more")
        if not 0.0 <= self.min_p <= 1.0:
            raise UsageError(f"min_p = {self.min_p} is out of range; valid: 0 (off) to 1")
        if not 0.0 < self.repetition_penalty <= 100.0:
            raise UsageError(f"repetition_penalty = {self.repetition_penalty} is out of range; valid: above 0 to 100")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -100.0 <= getattr(self, name) <= 100.0:
                raise UsageError(f"{name} = {getattr(self, name)} is out of range; valid: -100 to 100")
        if any(math.isnan(bias) for _, bias in self.logit_bias):
            raise UsageError("logit_bias holds a value that is not a number")
        if self.top_logprobs < 0:
            raise UsageError(f"top_logprobs = {self.top_logprobs} is negative; valid: 0 (off) or more")

    @cached_property
    def whole(self) -> bool:
        """Whether temperature alone shapes the distribution, and nothing but the token is asked for."""
        cut = self.top_k or self.top_p < 1 or self.min_p
        return not (cut or self.penalised or self.logit_bias or self.top_logprobs)

    @cached_property
    def penalised(self) -> bool:
        """Whether what was said before changes what may be said next."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


@dataclass(frozen=True)
class Budget:
    """At most `limit` tokens before the token `until`; then the ids `forced` are emitted instead of sampled ones.

    Counting stops for good once `until` was emitted. This is how a thinking channel is closed at its budget: the
    engine counts accepted tokens and never needs to know what a channel is.
    """

    limit: int
    until: int
    forced: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise UsageError(f"budget limit = {self.limit} is negative; valid: 0 or more tokens")


@dataclass(eq=False)
class Generation:
    """One request while it runs and when it is done. Places of pictures have ids beyond the vocabulary (`images.py`).

    `ids` are the new tokens, `logprobs` the log-probability of each under the distribution it was drawn from (after
    temperature, top-k, top-p), `forced` marks tokens that a budget put there (their log-probability is the one before
    top-k and top-p, so that it is finite). `top` holds the most likely alternatives of each token where asked for.
    `version` names the weights that its prompt was run with, `versions` the weights of each token, `loads` how often
    the engine's had changed by the prompt's end. A lower `priority` runs first; at `deadline` (time.monotonic seconds)
    it ends as it is.
    """

    prompt_ids: list[int]
    sampling: Sampling
    budget: Budget | None = None
    salt: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    finish_reason: str | None = None
    cached_tokens: int = 0
    version: int | str = 0
    loads: int = 0
    constraint: Constraint | None = None
    priority: int = 0
    deadline: float | None = None
    begun: float = 0.0  # time.perf_counter() when its prompt was first worked on
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    versions: list[int | str] = field(default_factory=list)
    held: tuple[Held, ...] = ()  # the pictures of the prompt, kept while it may be run
    routed_from: int | None = None  # the first token whose experts are recorded; None: nothing is
    routed: list[Tensor] = field(default_factory=list)  # [tokens, expert layers, k] each, in the order of the tokens

    def __post_init__(self) -> None:
        self._random = Random(self.sampling.seed)
        self._pending: list[int] = []
        self._counting = self.budget is not None
        self.counts: Counter[int] = Counter()  # of the tokens generated; kept where a penalty asks for them

    @property
    def prompt_words(self) -> set[int]:
        """The ids of the vocabulary that the prompt holds."""
        return {token for token in self.prompt_ids if token < FIRST}

    @property
    def prompt_tokens(self) -> int:
        """How many ids the prompt has."""
        return len(self.prompt_ids)

    @property
    def done(self) -> bool:
        """Whether the last token has been emitted."""
        return self.finish_reason is not None

    @property
    def routed_tokens(self) -> int:
        """Tokens whose experts have been recorded."""
        return sum(len(rows) for rows in self.routed)

    def twin(self, seed: int) -> Generation:
        """A request in the same state that goes on with a seed of its own."""
        twin = replace(
            self,
            sampling=replace(self.sampling, seed=seed),
            ids=list(self.ids),
            logprobs=list(self.logprobs),
            forced=list(self.forced),
            top=list(self.top),
            versions=list(self.versions),
            routed=list(self.routed),
            constraint=None if self.constraint is None else self.constraint.copy(),
        )
        twin._pending, twin._counting = list(self._pending), self._counting
        twin.counts = Counter(self.counts)
        return twin

    def draw(self) -> float:
        """The next uniform number of this request's own stream: its samples do not depend on its neighbours."""
        return self._random.random()

    def next_forced(self) -> int | None:
        """The id a budget demands now, or None when the model may choose."""
        if self._counting and self.budget is not None and len(self.ids) >= self.budget.limit:
            self._pending = list(self.budget.forced)
            self._counting = False
        return self._pending.pop(0) if self._pending else None

    def accept(self, token: int, logprob: float, forced: bool, context_length: int) -> None:
        """Record one token and decide whether it is the last."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.forced.append(forced)
        if self.sampling.penalised:
            self.counts[token] += 1
        if self.constraint is not None:
            self.constraint.advance(token)
        if self.budget is not None and token == self.budget.until:
            self._counting = False
        if token in self.sampling.stop_ids and not self._pending:
            self.finish_reason = "stop"
        elif len(self.ids) >= self.sampling.max_tokens or len(self.prompt_ids) + len(self.ids) >= context_length:
            self.finish_reason = "length"
