"""Policies: which licences a corpus may take without anybody's further word, and for which uses.

A built-in policy has a name (`cc`, `none`); a policy of one's own is a TOML file:

    about = "What our counsel agreed to in May."

    [[rule]]
    licence = "CC-BY-*"              # an SPDX key, or a shell pattern over SPDX keys; NC and ND need to be written out
    uses = ["train", "redistribute", "commercial"]
    attribution = true               # owed whatever the licence itself asks; may be left out

    [[authorisation]]
    licence = "LicenseRef-acme-contract"
    who = "A. Counsel"
    reason = "contract 17 of 2026-05-02 permits training"
    until = 2027-05-01
    sources = ["acme-*"]
"""

from __future__ import annotations

import datetime
import re
import tomllib
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import Any

from overland.errors import UsageError

USES = ("train", "redistribute", "commercial")
"""train a model on it; redistribute the model's outputs and the corpus; do either for money."""


@dataclass(frozen=True)
class Rule:
    """Licence keys (one pattern over the whole key) that may be used, and what for."""

    pattern: re.Pattern[str]
    uses: frozenset[str] = frozenset(USES)
    attribution: bool | None = None
    share_alike: bool | None = None


@dataclass(frozen=True)
class Profile:
    """A policy. `authorisations` are the words of people that its file holds, as plain fields."""

    name: str
    rules: tuple[Rule, ...]
    about: str
    authorisations: tuple[dict[str, Any], ...] = field(default=(), hash=False)

    def rule(self, key: str) -> Rule | None:
        """The first rule that names a licence key."""
        return next((rule for rule in self.rules if rule.pattern.fullmatch(key)), None)

    def permits(self, key: str, uses: frozenset[str] = frozenset(("train",))) -> bool:
        rule = self.rule(key)
        return rule is not None and uses <= rule.uses


def _plain(pattern: str, *uses: str) -> Rule:
    return Rule(re.compile(pattern), frozenset(uses or USES))


PROFILES: dict[str, Profile] = {
    "cc": Profile(
        "cc",
        # Versions and jurisdiction ports are allowed; NC and ND never match because nothing may follow BY but SA.
        (_plain(r"CC0-1\.0|CC-PDDC|CC-PDM-1\.0|LicenseRef-public-domain|CC-BY(-SA)?-\d\.\d(-[A-Z]{2,3})?"),),
        "Creative Commons without NC or ND, and the public domain; all else needs an authorisation.",
    ),
    "none": Profile("none", (), "Nothing at all without an authorisation."),
}


def profile(name: str) -> Profile:
    """The policy of that name or in that TOML file. Raises UsageError that lists the names or names the field."""
    if name in PROFILES:
        return PROFILES[name]
    if name.endswith(".toml"):
        path = Path(name)
        try:
            return _read(name, path.stat().st_mtime_ns)
        except OSError as error:
            raise UsageError(f"licence policy {name}: cannot be read ({error.strerror})") from error
    raise UsageError(f"licence profile '{name}' does not exist; choose one of: {', '.join(PROFILES)}, or a .toml file")


@lru_cache(maxsize=16)
def _read(name: str, changed: int) -> Profile:
    try:
        data = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"licence policy {name}: is not valid TOML: {error}") from error
    _only(data, {"about", "rule", "authorisation"}, name, "")
    rules = tuple(_rule(entry, f"rule[{at}]", name) for at, entry in enumerate(_tables(data, "rule", name)))
    words = tuple(
        _word(entry, f"authorisation[{at}]", name) for at, entry in enumerate(_tables(data, "authorisation", name))
    )
    if not rules and not words:
        raise UsageError(f"licence policy {name}: allows nothing; give a [[rule]] or an [[authorisation]]")
    return Profile(name, rules, str(data.get("about", "")), words)


def _tables(data: dict[str, Any], key: str, name: str) -> list[dict[str, Any]]:
    tables = data.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(entry, dict) for entry in tables):
        raise UsageError(f"licence policy {name}: {key} must be written as [[{key}]]")
    return tables


def _only(entry: dict[str, Any], known: set[str], name: str, place: str) -> None:
    for key in entry:
        if key not in known:
            where = f"{place}.{key}" if place else key
            raise UsageError(f"licence policy {name}: {where} is not a field; known are {', '.join(sorted(known))}")


def _rule(entry: dict[str, Any], place: str, name: str) -> Rule:
    _only(entry, {"licence", "uses", "attribution", "share_alike"}, name, place)
    licence = entry.get("licence")
    if not isinstance(licence, str) or not licence.strip():
        raise UsageError(f"licence policy {name}: {place}.licence must be an SPDX key or a pattern such as CC-BY-*")
    uses = entry.get("uses", ["train"])
    if not isinstance(uses, list) or not uses or not set(uses) <= set(USES):
        raise UsageError(f"licence policy {name}: {place}.uses = {uses!r}; choose from {', '.join(USES)}")
    for flag in ("attribution", "share_alike"):
        if not isinstance(entry.get(flag, True), bool):
            raise UsageError(f"licence policy {name}: {place}.{flag} must be true or false")
    return Rule(_pattern(licence), frozenset(uses), entry.get("attribution"), entry.get("share_alike"))


def _pattern(licence: str) -> re.Pattern[str]:
    """A shell pattern over SPDX keys in which `*` never reaches NC or ND: those have to be written out."""
    guard = "" if re.search(r"NC|ND", licence) or licence == "*" else r"(?!.*-(?:NC|ND)(?:-|$))"
    if licence == "*":
        guard = r"(?!CC-.*-(?:NC|ND)(?:-|$))"
    return re.compile(guard + translate(licence))


def _word(entry: dict[str, Any], place: str, name: str) -> dict[str, Any]:
    _only(entry, {"licence", "who", "reason", "until", "sources"}, name, place)
    for key in ("licence", "who", "reason"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise UsageError(f"licence policy {name}: {place}.{key} must not be empty")
    until = entry.get("until")
    if until is not None and type(until) is not datetime.date:
        raise UsageError(f"licence policy {name}: {place}.until = {until!r} must be a date such as 2027-05-01")
    sources = entry.get("sources", [])
    if not isinstance(sources, list) or not all(isinstance(item, str) for item in sources):
        raise UsageError(f"licence policy {name}: {place}.sources must be a list of source names")
    return {**entry, "until": until, "sources": tuple(sources)}
