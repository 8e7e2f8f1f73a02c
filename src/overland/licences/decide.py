"""The licence gate: may a text under this expression be used? Deny by default, and always say why.

OR picks an allowed arm, AND needs all of its arms, `A WITH exception` is allowed where `A` is (an exception only
adds permissions). An authorisation is one person's written word for one licence, or for one source; it can expire.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from overland.licences.expressions import BadExpression, Leaf, Node, Tree, normalise, parse, render
from overland.licences.profiles import Profile, profile

ANY = "*"
TRAIN = frozenset(("train",))


@dataclass(frozen=True)
class Authorisation:
    """A stated permission to use texts under `licence`.

    `licence`: an SPDX key, or "*" for whatever is found (also nothing at all). `sources`: shell patterns of source
    names; empty means every source. `until`: last day on which it holds; None means no end.
    """

    licence: str
    who: str
    reason: str
    until: datetime.date | None = None
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.who.strip() or not self.reason.strip():
            raise BadExpression(f"authorisation for '{self.licence}': 'who' and 'reason' must not be empty")
        if self.licence != ANY:
            object.__setattr__(self, "licence", normalise(self.licence))

    def covers(self, leaf: Leaf, source: str, today: datetime.date) -> bool:
        return self.licence in (leaf.key, leaf.base) and self.holds(source, today)

    def holds(self, source: str, today: datetime.date) -> bool:
        if self.until is not None and today > self.until:
            return False
        return not self.sources or any(fnmatchcase(source, pattern) for pattern in self.sources)


@dataclass(frozen=True)
class Decision:
    """`licence_used` is the part of the expression that is relied upon; empty when not allowed."""

    allowed: bool
    reason: str
    licence_used: str = ""
    authorisation: Authorisation | None = None


def decide(
    expression: str | None,
    profile_name: str = "cc",
    authorisations: Sequence[Authorisation] = (),
    *,
    source: str = "",
    uses: frozenset[str] = TRAIN,
    today: datetime.date | None = None,
) -> Decision:
    """Decide over one expression; None means that no licence is known.

    `profile_name`: a policy's name, or its .toml file, whose authorisations count beside those given. `uses`: all that
    the text is wanted for (train, redistribute, commercial); one that a rule does not grant is a reason to deny.
    Never raises for a bad expression: an expression that cannot be read is a reason to deny, not to stop.
    """
    today = today or datetime.date.today()
    rules = profile(profile_name)
    if rules.authorisations:
        authorisations = (*authorisations, *(Authorisation(**word) for word in rules.authorisations))
    blanket = next((a for a in authorisations if a.licence == ANY and a.holds(source, today)), None)
    if expression is None:
        if blanket:
            return Decision(True, f"authorised by {blanket.who}: {blanket.reason}", "LicenseRef-authorised", blanket)
        return Decision(False, "unknown licence")
    try:
        tree = parse(expression)
    except BadExpression as error:
        if blanket:
            return Decision(True, f"authorised by {blanket.who}: {blanket.reason}", "LicenseRef-authorised", blanket)
        return Decision(False, f"unreadable licence: {error}")
    allowed = _walk(tree, rules, authorisations, source, uses, today)
    if isinstance(allowed, _Allowed):
        return Decision(True, allowed.reason, render(allowed.tree), allowed.authorisation)
    if blanket:
        return Decision(True, f"authorised by {blanket.who}: {blanket.reason}", render(tree), blanket)
    return Decision(False, allowed)


@dataclass(frozen=True)
class _Allowed:
    tree: Tree
    reason: str
    authorisation: Authorisation | None


def _walk(
    tree: Tree,
    rules: Profile,
    authorisations: Sequence[Authorisation],
    source: str,
    uses: frozenset[str],
    today: datetime.date,
) -> _Allowed | str:
    """What of the tree may be used, or the reason why nothing may."""
    if isinstance(tree, Leaf):
        return _leaf(tree, rules, authorisations, source, uses, today)
    results = [_walk(child, rules, authorisations, source, uses, today) for child in tree.children]
    denied = [result for result in results if isinstance(result, str)]
    allowed = [result for result in results if isinstance(result, _Allowed)]
    if tree.operator == "OR":
        if not allowed:
            return "; ".join(dict.fromkeys(denied))
        # An arm that the profile allows by itself is worth more than one that leans on somebody's word.
        return min(allowed, key=lambda arm: arm.authorisation is not None)
    if denied:
        return "; ".join(dict.fromkeys(denied))
    reasons = "; ".join(dict.fromkeys(part.reason for part in allowed))
    words = [part.authorisation for part in allowed if part.authorisation]
    return _Allowed(Node("AND", tuple(part.tree for part in allowed)), reasons, words[0] if words else None)


def _leaf(
    leaf: Leaf,
    rules: Profile,
    authorisations: Sequence[Authorisation],
    source: str,
    uses: frozenset[str],
    today: datetime.date,
) -> _Allowed | str:
    if rules.permits(leaf.key, uses) or rules.permits(leaf.base, uses):
        return _Allowed(leaf, f"profile {rules.name}", None)
    for word in authorisations:
        if word.covers(leaf, source, today):
            return _Allowed(leaf, f"authorised by {word.who}: {word.reason}", word)
    expired = [a for a in authorisations if a.licence in (leaf.key, leaf.base) and a.until and today > a.until]
    if expired:
        return f"{leaf.key}: its authorisation by {expired[0].who} ended on {expired[0].until}"
    if rule := rules.rule(leaf.key) or rules.rule(leaf.base):
        missing = ", ".join(sorted(uses - rule.uses))
        return f"{leaf.key}: profile {rules.name} does not grant the use '{missing}'"
    return f"{leaf.key} is not in profile {rules.name} and not authorised"
