"""Signatures of thinking blocks: a client must send them back, and a wrong one must never brick a conversation.

`seal` carries the thinking itself, compressed and signed, for clients that keep `encrypted_content` and nothing else.
It proves where the text comes from; it does not hide it (the client was given the text anyway).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import zlib


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

    def seal(self, thinking: str) -> str:
        """The thinking as one opaque text that `unseal` takes back."""
        packed = zlib.compress(thinking.encode("utf-8", "surrogatepass"))
        digest = hmac.new(self._key, packed, hashlib.sha256).digest()
        return base64.b64encode(digest + packed).decode("ascii")

    def unseal(self, sealed: str) -> str | None:
        """The thinking of a sealed text; None where this server did not seal it, which is no reason to refuse it."""
        try:
            data = base64.b64decode(sealed, validate=True)
        except ValueError:
            return None
        digest, packed = data[:32], data[32:]
        if not hmac.compare_digest(hmac.new(self._key, packed, hashlib.sha256).digest(), digest):
            return None
        return zlib.decompress(packed).decode("utf-8", "surrogatepass")
