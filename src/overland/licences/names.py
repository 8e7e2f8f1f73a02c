"""The many ways in which people write a licence's name, brought to SPDX. What is not surely known stays unknown.

Read: SPDX expressions, Creative Commons names and URLs, Debian's short names (DEP-5), trove classifiers, and the plain
names that package metadata holds. A name without a version (`GPL`, `CC-BY`, `BSD`) says too little and is not read.
"""

from __future__ import annotations

import re
from functools import lru_cache

from overland.licences.expressions import BadExpression, normalise

PUBLIC_DOMAIN = "LicenseRef-public-domain"
"""An express dedication to the public domain that is neither CC0 nor Creative Commons' mark."""

_CC_URL = re.compile(
    r"creativecommons\.org/(?:licen[sc]es/(?P<kind>by(?:-(?:nc|nd|sa))*|sampling\+?)/(?P<version>\d\.\d)"
    r"(?:/(?P<port>[a-z]{2,3})(?=[/\s\"'<>]|$))?|publicdomain/(?P<domain>zero|mark)/1\.0)",
    re.IGNORECASE,
)
_CC_NAME = re.compile(
    r"^\s*(?:creative[ -]commons|cc)?[ -]*(?P<words>(?:by|attribution|nc|non-?commercial|nd|no-?deriv\w*|sa"
    r"|share-?alike)(?:[ ,/_-]+(?:by|attribution|nc|non-?commercial|nd|no-?deriv\w*|sa|share-?alike))*)"
    r"[ ,_-]*(?:licen[sc]e)?[ ,_-]*v?(?:ersion )?(?P<version>\d\.\d)"
    r"(?: *(?:international|unported|generic|intl))?(?: *(?:public )?licen[sc]e)?(?: *\(.{0,40}\))?\s*$",
    re.IGNORECASE,
)
_GNU = re.compile(
    r"^\s*(?:gnu )?(?P<kind>agpl|lgpl|gpl|gfdl|fdl)(?: license)?[ -]*v?(?P<version>\d(?:\.\d)?)(?:\.0)?"
    r"(?P<later>\+| ?or[ -]later)?(?P<only>[ -]only)?\s*$",
    re.IGNORECASE,
)
_PLAIN = {
    "expat": "MIT", "mit license": "MIT", "the mit license": "MIT", "mit/expat": "MIT", "mit license (expat)": "MIT",
    "apache 2.0": "Apache-2.0", "apache-2": "Apache-2.0", "apache license 2.0": "Apache-2.0", "apache2": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache license version 2.0": "Apache-2.0", "apache 2": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0", "bsd-2": "BSD-2-Clause", "bsd-3": "BSD-3-Clause",
    "bsd-2-clause license": "BSD-2-Clause", "bsd-3-clause license": "BSD-3-Clause", "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause", "new bsd license": "BSD-3-Clause", "bsd 2-clause": "BSD-2-Clause",
    "3-clause bsd": "BSD-3-Clause", "3-clause bsd license": "BSD-3-Clause", "isc license": "ISC",
    "isc license (iscl)": "ISC", "mpl 2.0": "MPL-2.0", "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "mozilla public license 2.0": "MPL-2.0", "psf-2": "PSF-2.0", "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense", "the unlicense": "Unlicense", "cc0": "CC0-1.0", "cc0 1.0": "CC0-1.0",
    "cc0 1.0 universal": "CC0-1.0", "cc-zero": "CC0-1.0", "cc0 1.0 universal (cc0 1.0) public domain dedication":
    "CC0-1.0", "public domain": PUBLIC_DOMAIN, "public-domain": PUBLIC_DOMAIN, "publicdomain": PUBLIC_DOMAIN,
    "public domain mark 1.0": "CC-PDM-1.0", "pdm 1.0": "CC-PDM-1.0", "boost-1.0": "BSL-1.0", "boost": "BSL-1.0",
    "zlib/libpng": "Zlib", "artistic-2": "Artistic-2.0", "postgresql license": "PostgreSQL",
}  # fmt: skip
_CONNECTIVE = re.compile(r"\s*,?\s+(and|or)\s+", re.IGNORECASE)


@lru_cache(maxsize=8192)
def from_statement(statement: str) -> str | None:
    """The SPDX expression that a statement means, or None where it is not surely known.

    Debian's `GPL-2+ or CC-BY-SA-3.0`, `https://creativecommons.org/licenses/by/4.0/`, `CC BY-SA 4.0`, `Apache 2.0`,
    `License :: OSI Approved :: MIT License` and SPDX itself are read. A URL or a name with NC or ND keeps them.
    """
    text = " ".join(statement.split()).strip().rstrip(".")
    if not text or len(text) > 400:
        return None
    if "::" in text:
        text = text.rsplit("::", 1)[-1].strip()
    try:
        return normalise(text)
    except BadExpression:
        pass
    if key := _one(text):
        return key
    parts = _CONNECTIVE.split(text)
    if len(parts) == 1:
        return None
    keys = [_one(part) or _listed(part) for part in parts[::2]]
    if not all(keys):
        return None
    # Debian binds `and` no closer than `or`; parentheses keep what was written from being read another way.
    operators = {word.upper() for word in parts[1::2]}
    return normalise(f" {operators.pop()} ".join(str(key) for key in keys)) if len(operators) == 1 else None


def creative_commons_url(text: str) -> str | None:
    """The licence of the first Creative Commons URL in a text, or None."""
    match = _CC_URL.search(text)
    return _from_url(match) if match else None


def creative_commons_urls(text: str) -> set[str]:
    """The licences of all Creative Commons URLs in a text."""
    return {key for match in _CC_URL.finditer(text) if (key := _from_url(match))}


def _from_url(match: re.Match[str]) -> str | None:
    if match["domain"]:
        return "CC0-1.0" if match["domain"].lower() == "zero" else "CC-PDM-1.0"
    kind = match["kind"].upper()
    plain = f"CC-{kind}-{match['version']}"
    if match["port"]:
        return _listed(f"{plain}-{match['port'].upper()}") or _listed(plain)
    return _listed(plain)


def _one(text: str) -> str | None:
    text = text.strip()
    if key := _PLAIN.get(text.lower()):
        return key
    if "creativecommons.org" in text.lower():
        keys = creative_commons_urls(text)
        return keys.pop() if len(keys) == 1 else None
    if match := _CC_NAME.match(text):
        words = re.sub(r"[^a-z]", "", match["words"].lower())
        if not words.startswith(("by", "attribution")):
            return None
        key = "CC-BY"
        key += "-NC" if re.search(r"nc|noncommercial", words) else ""
        key += "-ND" if re.search(r"nd|noderiv", words) else ""
        key += "-SA" if re.search(r"sa|sharealike", words.replace("sampling", "")) else ""
        return _listed(f"{key}-{match['version']}")
    if match := _GNU.match(text):
        kind = match["kind"].upper().replace("FDL", "GFDL").replace("GGFDL", "GFDL")
        version = match["version"] if "." in match["version"] else f"{match['version']}.0"
        return _listed(f"{kind}-{version}-{'or-later' if match['later'] else 'only'}")
    return None


def _listed(text: str) -> str | None:
    try:
        return normalise(text)
    except BadExpression:
        return None
