"""SPDX licence expressions: parsed by the `license-expression` library, with local references kept local.

An expression becomes a small tree: a leaf is a licence key (`CC-BY-4.0`, or `GPL-2.0-only WITH
Classpath-exception-2.0`), a node is `("AND" | "OR", children)`. Everything else in this room walks that tree.

Source: SPDX specification 2.3, annex D.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from overland.errors import UsageError

LOCAL = re.compile(r"^(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+$")


class BadExpression(UsageError):
    """The text is not an SPDX expression, or names a licence that SPDX does not list."""


@dataclass(frozen=True)
class Leaf:
    """One licence. `base` is the key without its exception: an SPDX exception only adds permissions."""

    key: str
    base: str


@dataclass(frozen=True)
class Node:
    """`operator` is AND or OR over two or more children, in the order in which they were written."""

    operator: str
    children: tuple[Tree, ...]


Tree = Leaf | Node


@lru_cache(maxsize=1)
def _licensing() -> Any:
    """The SPDX list, without the library's `LicenseRef-` aliases.

    SPDX defines a LicenseRef as local to its document, so `LicenseRef-Apache` in a stranger's file need not be
    Apache-2.0; the library would quietly say that it is.
    """
    from license_expression import LicenseSymbol, Licensing, get_spdx_licensing

    symbols = []
    for symbol in get_spdx_licensing().known_symbols.values():
        aliases = tuple(alias for alias in symbol.aliases if not alias.lower().startswith("licenseref-"))
        symbols.append(LicenseSymbol(key=symbol.key, aliases=aliases, is_exception=symbol.is_exception))
    return Licensing(symbols)


@lru_cache(maxsize=4096)
def parse(expression: str) -> Tree:
    """Parse an SPDX expression. Raises BadExpression naming the unknown licence and its nearest neighbour."""
    text = expression.strip()
    if not text:
        raise BadExpression("an empty licence expression: give an SPDX expression such as CC-BY-4.0")
    if text.upper() in ("NONE", "NOASSERTION"):
        raise BadExpression(f"'{text}' states that no licence is known")
    licensing = _licensing()
    try:
        parsed = licensing.parse(text, validate=False, strict=False)
    except Exception as error:  # the library raises several unrelated types for malformed text
        raise BadExpression(
            f"'{expression}' is not an SPDX licence expression: {' '.join(str(error).split())}"
        ) from error
    for symbol in parsed.symbols:
        pair = (symbol.license_symbol, symbol.exception_symbol) if _is_with(symbol) else (symbol,)
        for place, part in enumerate(pair):
            _check(str(part.key), place == 1, expression)
    return _tree(parsed)


def _check(key: str, exception_place: bool, expression: str) -> None:
    known = _licensing().known_symbols
    if key in known and known[key].is_exception == exception_place:
        return
    if LOCAL.match(key) and not exception_place:
        return
    right = [name for name, symbol in known.items() if symbol.is_exception == exception_place]
    near = difflib.get_close_matches(key, right, 1)
    kind = "exception" if exception_place else "licence"
    raise BadExpression(
        f"'{key}' in '{expression}' is not an SPDX {kind}." + (f" Did you mean {near[0]}?" if near else "")
    )


def _is_with(symbol: Any) -> bool:
    return hasattr(symbol, "exception_symbol")


def _tree(parsed: Any) -> Tree:
    if _is_with(parsed):
        return Leaf(f"{parsed.license_symbol.key} WITH {parsed.exception_symbol.key}", str(parsed.license_symbol.key))
    if hasattr(parsed, "operator"):
        return Node(parsed.operator.strip(), tuple(_tree(child) for child in parsed.args))
    return Leaf(str(parsed.key), str(parsed.key))


def leaves(tree: Tree) -> list[Leaf]:
    """All licences that an expression names, in order, once each."""
    if isinstance(tree, Leaf):
        return [tree]
    return list(dict.fromkeys(leaf for child in tree.children for leaf in leaves(child)))


def render(tree: Tree, inside: str = "") -> str:
    """The expression as SPDX writes it, with parentheses only where AND and OR mix."""
    if isinstance(tree, Leaf):
        return tree.key
    text = f" {tree.operator} ".join(render(child, tree.operator) for child in tree.children)
    return f"({text})" if inside and inside != tree.operator else text


def normalise(expression: str) -> str:
    """Canonical spelling: `cc0-1.0 or gpl-2.0+` becomes `CC0-1.0 OR GPL-2.0-or-later`."""
    return render(parse(expression))


def keys_of(expression: str) -> tuple[str, ...]:
    """The licence keys that an expression names."""
    return tuple(leaf.key for leaf in leaves(parse(expression)))
