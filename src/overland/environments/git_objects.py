"""A git repository as files, written object by object: equal input gives equal bytes, and no git is needed.

Format: git's own (gitformat-loose, gitdatamodel): a zlib stream of "TYPE SIZE\\0CONTENT", named by the SHA-1 of that.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

START = 1_700_000_000
"""Seconds of the first commit; each later one is an hour later."""


@dataclass(frozen=True)
class Commit:
    """`files` are the whole tree (no folders), `author` a name of one word."""

    message: str
    author: str
    files: Mapping[str, str]


def bare_repository(commits: Sequence[Commit]) -> tuple[dict[str, bytes], list[str]]:
    """The files of a bare repository with one branch, main, and the ids of the commits, oldest first."""
    found: dict[str, bytes] = {
        "HEAD": b"ref: refs/heads/main\n",
        "config": b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
    }

    def stored(kind: str, content: bytes) -> str:
        whole = f"{kind} {len(content)}\0".encode() + content
        name = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        # Stored, not compressed: the bytes then are the same whatever zlib a machine has.
        found[f"objects/{name[:2]}/{name[2:]}"] = zlib.compress(whole, 0)
        return name

    ids: list[str] = []
    for number, commit in enumerate(commits):
        entries = b"".join(
            f"100644 {path}\0".encode() + bytes.fromhex(stored("blob", text.encode()))
            for path, text in sorted(commit.files.items())
        )
        who = f"{commit.author} <{commit.author}@example.org> {START + 3600 * number} +0000"
        lines = [f"tree {stored('tree', entries)}", *(f"parent {p}" for p in ids[-1:])]
        lines += [f"author {who}", f"committer {who}", "", commit.message, ""]
        ids.append(stored("commit", "\n".join(lines).encode()))
    found["refs/heads/main"] = f"{ids[-1]}\n".encode()
    return found, ids
