"""From a checked request to a stream of what the model says, the same for every API.

`Generator.plan` settles the prompt, the sampling and the thinking budget, and refuses what cannot fit before any
work is done. A `Choice` runs one generation: an async iterator of deltas, then its `answer`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from overland.chat import Message, Template, Tokenizer, ToolSpec, normalise_effort
from overland.chat.tokenizer import MEDIA_PAD
from overland.chat.xtml_grammar import turn_grammar
from overland.engine import AsyncEngine, Budget, Generation, Picture
from overland.errors import OverlandError
from overland.model.vision.preprocess import Preprocessing
from overland.serve.admission import Admission, Load
from overland.serve.choice import Choice
from overland.serve.conversation_log import ConversationLog
from overland.serve.effort_controller import EffortController
from overland.serve.errors import ApiError, bad_request
from overland.serve.exploring import Explored, Verifier, verifier_at
from overland.serve.grammar import GrammarConstraint, Grammars
from overland.serve.memory import memory_usage
from overland.serve.metrics import Metrics
from overland.serve.settings import ServeSection
from overland.serve.turns import Prompt, PromptBuilder, SampledTurns

LONG_PROMPT = 20_000
"""Characters from which a prompt is encoded beside the event loop."""


@dataclass(frozen=True)
class Ask:
    """A request in neutral terms. None means that the client did not say."""

    messages: list[Message]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"  # auto, none, required
    parallel_calls: bool = True
    effort: str | None = None  # any spelling an API knows; "none" asks for no thinking
    think_budget: int | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    choices: int = 1
    call_prefix: str = "call_"
    named: frozenset[str] | None = None  # the only tools that may be called; None: all
    strict: bool = False  # arguments must follow their schemas
    answer: Mapping[str, Any] | None = None  # the form of the response, see chat.xtml_grammar.Answer
    answer_field: str = "response_format"
    response_format: dict[str, Any] | None = None  # the same as it is shown to the model
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int = 0
    salt: str = ""
    request_id: str = ""
    deadline: float | None = None  # time.monotonic() seconds
    pictures: Mapping[str, Picture] = field(default_factory=dict)  # of the messages, by hash
    paths: int | None = None  # to be explored for each choice
    pick: str | None = None  # vote or verifier
    prompt_ids: tuple[int, ...] | None = None  # ids to be used as they are, in place of the rendered messages

    @property
    def characters(self) -> int:
        """The length of what was said, about."""
        return sum(len(message.content) + len(message.reasoning) for message in self.messages)

    @property
    def images(self) -> list[Picture]:
        """The pictures in the order of their places in the prompt."""
        return [self.pictures[part.sha256] for message in self.messages for part in message.images]


@dataclass(frozen=True)
class Plan:
    """What the engine will be asked."""

    ask: Ask
    prompt: Prompt
    effort: str
    max_tokens: int
    seed: int
    budget: Budget | None
    grammar: str | None = None
    reduced: int = 0  # levels by which the effort controller lowered it
    paths: int = 1  # generations of each choice

    @property
    def load(self) -> Load:
        """What it will cost."""
        return Load(len(self.prompt.ids), self.max_tokens, self.ask.choices * self.paths)


class Generator:
    """The engine with a template, a memory of sampled turns, meters and a limit on what is in flight."""

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer: Tokenizer,
        template: Template,
        metrics: Metrics,
        settings: ServeSection,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        self.engine = engine
        self.preprocessing = preprocessing
        engine.engine.token_limit = tokenizer.vocab_size
        self.tokenizer = tokenizer
        self.template = template
        self.metrics = metrics
        self.settings = settings
        self.turns = SampledTurns(settings.sampled_turn_tokens)
        self.prompts = PromptBuilder(template, tokenizer, self.turns)
        self.grammars = Grammars(tokenizer)
        self.stop_ids = tuple(template.stop_ids(tokenizer))
        self.think_close = tuple(template.think_close_ids(tokenizer))
        self.log: ConversationLog | None = None
        url = settings.verifier_url
        self.verifier: Verifier | None = verifier_at(url, settings.verifier_seconds) if url else None
        self.admission = Admission(settings, metrics)
        self.controller = EffortController(settings)
        self._running: dict[int, tuple[str, Generation]] = {}
        self._numbers = itertools.count()
        for tier in ("low", "high", "max"):
            limit = settings.think_budget(tier)
            if limit is not None:
                metrics.level(metrics.budget_tokens, tier, limit)

    @property
    def context_length(self) -> int:
        """Tokens that prompt and answer may have together."""
        return min(self.engine.engine.context_length, self.engine.engine.most_tokens)

    async def prompt(self, ask: Ask) -> Prompt:
        """The prompt of a request. Raises a 400 where the template cannot say the conversation.

        A long one is encoded beside the event loop, which answers others meanwhile: it takes a second a megabyte.
        """
        if ask.prompt_ids is not None:
            return self.prompts.given(ask.prompt_ids)
        build = functools.partial(
            self.prompts.build, ask.messages, ask.tools, self.effort(ask), True, ask.tool_choice, ask.response_format
        )
        try:
            return await asyncio.to_thread(build) if ask.characters > LONG_PROMPT else build()
        except OverlandError as error:
            raise bad_request("messages", str(error)) from None

    def effort(self, ask: Ask) -> str:
        """The tier a request runs at: low, high or max. "none" is low with its thinking closed at once."""
        return normalise_effort(ask.effort or self.controller.default_effort())

    async def plan(self, ask: Ask) -> Plan:
        """Settles everything about a request. Raises 400 context_length_exceeded where its prompt does not fit."""
        if self.settings.effort_controller:
            self.pressure()
        prompt = await self.prompt(ask)
        room = self.context_length - len(prompt.ids)
        if room < 1:
            raise ApiError(
                400,
                f"messages: the prompt has {len(prompt.ids)} tokens, which leaves no room for an answer in the "
                f"context of {self.context_length}",
                param="messages",
                code="context_length_exceeded",
            )
        self._check_places(prompt, ask)
        for source, turns in (("sampled", prompt.reused), ("rendered", prompt.rendered)):
            self.metrics.count(self.metrics.turns, source, turns)
        max_tokens = min(room, ask.max_tokens or self.settings.max_tokens)
        effort = self.effort(ask)
        seed = secrets.randbits(31) if ask.seed is None else ask.seed
        budget = self._budget(ask, effort, max_tokens)
        reduced = self.controller.level if ask.effort is None and ask.think_budget is None else 0
        if reduced:
            self.metrics.count(self.metrics.effort_reduced, self.controller.reason)
        paths = self._paths(ask, effort)
        ask = replace(ask, pick=ask.pick or ("verifier" if self.verifier is not None else "vote"))
        return Plan(ask, prompt, effort, max_tokens, seed, budget, self._grammar(ask), reduced, paths)

    def _paths(self, ask: Ask, effort: str) -> int:
        """How many paths each choice explores: as asked, or at max effort the server's default. Raises a 400."""
        if ask.pick == "verifier" and self.verifier is None:
            raise bad_request("explore.pick", "this server has no verifier; valid: vote")
        if ask.paths is None or ask.paths == 1:
            lone = ask.paths == 1 or effort != "max" or ask.temperature == 0 or ask.prompt_ids is not None
            most = max(1, self.settings.max_choices // ask.choices)
            return 1 if lone else min(most, self.settings.explore_paths)
        if ask.choices * ask.paths > self.settings.max_choices:
            what = f"{ask.choices} choices of {ask.paths} paths; at most {self.settings.max_choices} together"
            raise bad_request("explore.paths", what)
        if ask.temperature == 0:
            raise bad_request("explore.paths", "at temperature 0 all paths are the same; give a temperature above 0")
        if effort != "max":
            if ask.effort is not None:
                raise bad_request("explore.paths", f"several paths are explored at effort max, not {effort}")
            return 1  # under pressure max is the first to shrink
        return ask.paths

    def _check_places(self, prompt: Prompt, ask: Ask) -> None:
        """A 400 where ids that a client put together have other places for pictures than its messages have pictures."""
        if self.preprocessing is None or ask.prompt_ids is None:
            return
        places = sum(part.places for message in ask.messages for part in message.images)
        if (found := prompt.ids.count(self.tokenizer.special(MEDIA_PAD))) != places:
            raise bad_request("tokens", f"{found} places for pictures, the messages' pictures have {places}")

    def _grammar(self, ask: Ask) -> str | None:
        """The grammar a turn must follow, compiled once here so that a wrong one is refused before any work."""
        calls = "none" if not ask.tools else {"none": "none", "required": "required"}.get(ask.tool_choice, "auto")
        # Calls are held to the tools' schemas where that is asked for, and kept out where the client wants none.
        held = bool(ask.tools) if calls == "none" else bool(ask.strict or calls == "required" or ask.named)
        if ask.answer is None and not held:
            return None
        if ask.answer is None and not self.grammars.installed:
            return None  # calls are then asked for in words
        tools = [tool for tool in ask.tools if ask.named is None or tool.name in ask.named]
        where = ask.answer_field if ask.answer is not None else "tools"
        try:
            lark = turn_grammar(tools, calls=calls, parallel=ask.parallel_calls, answer=ask.answer)
            self.grammars.constraint(lark)
        except OverlandError as error:
            raise bad_request(where, str(error), "unsupported_schema") from None
        return lark

    def constraint(self, plan: Plan) -> GrammarConstraint | None:
        """A constraint in its first state, for one choice."""
        return None if plan.grammar is None else self.grammars.constraint(plan.grammar)

    def _budget(self, ask: Ask, effort: str, max_tokens: int) -> Budget | None:
        """The least of: the tier's budget, the client's, and what leaves room for an answer."""
        tier = self.settings.think_budget(effort)
        if ask.effort is None and ask.think_budget is None:
            tier = self.controller.budget(tier)
        limits = [tier, ask.think_budget, 0 if ask.effort == "none" else None]
        if self.settings.answer_reserve:
            limits.append(max(0, max_tokens - self.settings.answer_reserve - len(self.think_close)))
        known = [limit for limit in limits if limit is not None]
        if not known or min(known) >= max_tokens:
            return None
        return Budget(limit=min(known), until=self.think_close[0], forced=self.think_close)

    @property
    def in_flight(self) -> int:
        """Generations admitted and not yet ended."""
        return self.admission.in_flight

    def pressure(self) -> int:
        """The effort controller's level, brought up to date."""
        signals = self.controller.signals(self.engine.engine.stats(), memory_usage())
        level = self.controller.look(signals)
        self.metrics.effort_level.set(level)
        return level

    def register(self, generation: Generation, request_id: str = "") -> int:
        """Remembers a running generation, so that it can be ended from outside; returns its key."""
        key = next(self._numbers)
        self._running[key] = (request_id, generation)
        return key

    def unregister(self, key: int) -> None:
        """Forgets a generation that has ended."""
        del self._running[key]

    def cancel_all(self, request_ids: Collection[str] | None = None) -> int:
        """Ends what is running (of these requests); its clients are told so, in their answer or in a last event."""
        ended = [g for name, g in self._running.values() if request_ids is None or name in request_ids]
        for generation in ended:
            self.engine.cancel(generation)
        return len(ended)

    def choices(self, plan: Plan) -> Sequence[Choice | Explored]:
        """The answers of a request; each generation has its own seed."""
        kind = Choice if plan.paths == 1 else Explored
        return [kind(self, plan, number) for number in range(plan.ask.choices)]
