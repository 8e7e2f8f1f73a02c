"""Structured output through llguidance (MIT): a turn's grammar compiled against the tokenizer, as engine constraints.

llguidance comes with the extra `grammar`. Without it a request that asks for a form is refused by name; tool calls are
then asked for in words only.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from overland.chat import Tokenizer
from overland.chat.tokenizer import CLOSE, END_OF_MSG
from overland.errors import UsageError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT = 256  # compiled grammars; a coding agent sends the same tools with every request


class Grammars:
    """Compiles grammars once and hands out constraints in their first state."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = tokenizer.special(END_OF_MSG)
        self._close = tokenizer.special(CLOSE)
        self._thinking = torch.tensor([tokenizer.special_name(i) is None for i in range(tokenizer.vocab_size)])
        self._thinking[self._close] = True
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = Lock()
        self._ll: LLTokenizer | None = None

    @property
    def installed(self) -> bool:
        """Whether llguidance is there."""
        try:
            import llguidance  # noqa: F401
        except ImportError:
            return False
        return True

    def constraint(self, lark: str, thinking: bool = True) -> GrammarConstraint:
        """A constraint for one request; with `thinking` it takes hold behind the <|close|> that ends the thinking.

        Raises UsageError for a grammar that cannot be compiled.
        """
        with self._lock:
            matcher = self._compiled.get(lark)
            if matcher is None:
                matcher = self._compile(lark)
                self._compiled[lark] = matcher
                if len(self._compiled) > KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(lark)
            return GrammarConstraint(matcher.deep_copy(), self._close, self._thinking if thinking else None)

    def _compile(self, lark: str) -> LLMatcher:
        try:
            from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
        except ImportError:
            raise UsageError(
                "structured output needs llguidance, which is not installed: pip install 'overland[grammar]'"
            ) from None
        if self._ll is None:
            self._ll = LLTokenizer(TokenizerWrapper(_Vocabulary(self._tokenizer, self._end)), slices=[])
        matcher = LLMatcher(self._ll, LLMatcher.grammar_from_lark(lark), log_level=0)
        if matcher.is_error():
            raise UsageError(matcher.get_error().strip().splitlines()[0])
        return matcher


class GrammarConstraint:
    """One turn's automaton. Where it breaks (a grammar too large to follow), it lets go and says so in `error`.

    thinking: ids [V] that may be said until `close` ends the thinking; None where there is none.
    """

    def __init__(self, matcher: LLMatcher, close: int, thinking: Tensor | None) -> None:
        self._matcher = matcher
        self._close = close
        self._thinking = thinking
        self.error = ""

    def allowed(self, vocab_size: int) -> Tensor | None:
        """Which ids may come next, [V] bool."""
        if self.error:
            return None
        known = self._thinking
        if known is None:
            bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
            if self._matcher.is_error():
                self.error = self._matcher.get_error()
                return None
            known = torch.from_numpy(bits[:vocab_size]).bool()
        mask = torch.zeros(vocab_size, dtype=torch.bool)
        mask[: known.shape[0]] = known
        return mask

    def advance(self, token: int) -> None:
        """Take one accepted token."""
        if self._thinking is not None:
            if token == self._close:
                self._thinking = None
        elif not self.error and not self._matcher.consume_token(token):
            self.error = self._matcher.get_error() or "the constraint was left"

    def copy(self) -> GrammarConstraint:
        """The same state on its own."""
        twin = GrammarConstraint(self._matcher.deep_copy(), self._close, self._thinking)
        twin.error = self.error
        return twin


class _Vocabulary:
    """The tokenizer as llguidance wants to see it."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = end
        self.bos_token_id = None
        self.tokens = [tokenizer.bytes_of([i]) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = [i for i in range(tokenizer.vocab_size) if tokenizer.special_name(i) is not None]

    def __call__(self, text: Any) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
