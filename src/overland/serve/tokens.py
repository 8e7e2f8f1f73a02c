"""Log-probabilities of sampled tokens as OpenAI's APIs show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from overland.chat import Tokenizer

NO_LOGPROB = -9999.0  # JSON has no -inf; OpenAI's own stand-in


def finite(logprob: float) -> float:
    """A log-probability that JSON can carry."""
    return max(logprob, NO_LOGPROB) if logprob == logprob else NO_LOGPROB


def logprob_entries(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    logprobs: Sequence[float],
    top: Iterable[Sequence[tuple[int, float]]],
) -> list[dict[str, Any]]:
    """One entry a token: its text, bytes and log-probability, and the most likely alternatives where asked for."""
    return [
        {**_entry(tokenizer, token, logprob), "top_logprobs": [_entry(tokenizer, *one) for one in alternatives]}
        for token, logprob, alternatives in zip(ids, logprobs, top, strict=True)
    ]


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.bytes_of([token])
    return {"token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": finite(logprob)}
