"""Profiles: which licences a corpus may take without anybody's further word."""

from __future__ import annotations

import re
from dataclasses import dataclass

from overland.errors import UsageError


@dataclass(frozen=True)
class Profile:
    """A named set of licence keys, written as one pattern that must match the whole key."""

    name: str
    allowed: re.Pattern[str]
    about: str

    def permits(self, key: str) -> bool:
        return self.allowed.fullmatch(key) is not None


PROFILES: dict[str, Profile] = {
    "cc": Profile(
        "cc",
        # Versions and jurisdiction ports are allowed; NC and ND never match because nothing may follow BY but SA.
        re.compile(r"CC0-1\.0|CC-PDDC|CC-PDM-1\.0|CC-BY(-SA)?-\d\.\d(-[A-Z]{2,3})?"),
        "Creative Commons without NC or ND, and the public domain; all else needs an authorisation.",
    ),
    "none": Profile("none", re.compile(r"(?!)"), "Nothing at all without an authorisation."),
}


def profile(name: str) -> Profile:
    """The profile of that name, or a UsageError that lists the names."""
    if name not in PROFILES:
        raise UsageError(f"licence profile '{name}' does not exist; choose one of: {', '.join(PROFILES)}")
    return PROFILES[name]
