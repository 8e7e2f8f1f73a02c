"""What placeholders stand for, kept so that only the holder of a key can read it. The key is never stored.

`vault.parquet` has one sealed row a document: JSON {placeholder: value} under AES-SIV (RFC 5297) with the document's id
as associated data, so a row fits no other document and equal input gives equal bytes. The key comes from a passphrase
in the environment through scrypt; without it the rows say nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from overland.errors import OverlandError, UsageError

VAULT = "vault.parquet"
_SALT = b"overland corpus vault 1"


class Vault:
    """Seals and opens rows under one key."""

    def __init__(self, passphrase: str) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV
        except ImportError as error:
            raise UsageError("corpus.pii_key_env needs cryptography: pip install 'overland[corpus]'") from error
        key = hashlib.scrypt(passphrase.encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=64, maxmem=64 * 2**20)
        self._cipher = AESSIV(key)

    def seal(self, document_id: str, values: dict[str, str]) -> bytes:
        """The sealed row of a document."""
        return self._cipher.encrypt(json.dumps(values, ensure_ascii=True).encode(), [document_id.encode()])

    def open(self, document_id: str, sealed: bytes) -> dict[str, str]:
        """{placeholder: value}. Raises OverlandError where the key or the document is another."""
        from cryptography.exceptions import InvalidTag

        try:
            values: dict[str, str] = json.loads(self._cipher.decrypt(sealed, [document_id.encode()]))
        except InvalidTag as error:
            raise OverlandError(f"{VAULT}: the key does not fit what document {document_id} was sealed with") from error
        return values


@lru_cache(maxsize=4)
def open_vault(variable: str) -> Vault:
    """The vault under the passphrase in an environment variable. Raises UsageError where it is not set."""
    passphrase = os.environ.get(variable, "")
    if len(passphrase) < 12:
        raise UsageError(
            f"corpus.pii_key_env: set {variable} to a passphrase of at least 12 characters, or leave it out"
        )
    return Vault(passphrase)


def reveal(corpus_dir: str | Path, document_id: str, variable: str) -> dict[str, str]:
    """What a document's placeholders stand for; empty where nothing was sealed for it."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = Path(corpus_dir) / VAULT
    if not path.is_file():
        raise UsageError(f"{path}: there is none; the corpus was built without corpus.pii_key_env")
    rows = pq.read_table(path, filters=pc.field("id") == document_id).to_pylist()
    return open_vault(variable).open(document_id, rows[0]["sealed"]) if rows else {}


@cache
def vault_schema() -> Any:
    """vault.parquet."""
    import pyarrow as pa

    return pa.schema([("id", pa.string()), ("sealed", pa.binary())])
