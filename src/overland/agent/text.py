"""Text that crosses a boundary is clean UTF-8, and no longer than its reader can use."""

from __future__ import annotations

MAX_ECHO = 800


def clean(text: str) -> str:
    """Replaces lone surrogates: they pass through str and blow up at the first encode, often much later."""
    return text.encode("utf-8", errors="replace").decode("utf-8") if _has_surrogate(text) else text


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def cap(text: str, limit: int) -> str:
    """Head and tail of `text` around a notice with exact counts, at most about `limit` characters kept."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit - limit // 2], text[-(limit // 2) :] if limit > 1 else ""
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[... {left_out} of {len(text)} characters left out ...]\n{tail}"
