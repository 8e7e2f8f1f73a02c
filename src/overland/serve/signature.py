"""Signatures of thinking blocks: a client must send them back, and a wrong one must never brick a conversation."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets


class ThinkingSigner:
    """HMAC-SHA256 over the thinking text, under a key that lives as long as the server."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def sign(self, thinking: str) -> str:
        """The signature a thinking block carries."""
        digest = hmac.new(self._key, thinking.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
        return base64.b64encode(digest).decode("ascii")

    def check(self, thinking: str, signature: str | None) -> str:
        """valid, invalid or missing: for a meter, never for a refusal."""
        if not signature:
            return "missing"
        same = hmac.compare_digest(self.sign(thinking).encode(), signature.encode("utf-8", "surrogatepass"))
        return "valid" if same else "invalid"
