"""Bill of materials: what a corpus (and so a model) is made of, by licence, and what is owed for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from overland.licences.expressions import keys_of
from overland.licences.facts import facts


@dataclass(frozen=True)
class BillLine:
    """One document that is used: the licence relied upon, its source, and its weight."""

    licence: str
    source: str
    tokens: int
    n_bytes: int
    attribution: str = ""


def bill_of_materials(lines: Iterable[BillLine]) -> dict[str, dict[str, Any]]:
    """By licence: documents, tokens, bytes, sources, and the obligations.

    `attribution_owed` lists whom to name; it is empty where the licence asks for nobody to be named.
    """
    bill: dict[str, dict[str, Any]] = {}
    for line in lines:
        entry = bill.get(line.licence)
        if entry is None:
            duties = [facts(key) for key in keys_of(line.licence)]
            entry = bill[line.licence] = {
                "documents": 0,
                "tokens": 0,
                "bytes": 0,
                "sources": set(),
                "attribution_owed": set(),
                "must_name_authors": any(duty.attribution for duty in duties),
                "must_carry_notice": any(duty.notice for duty in duties),
                "share_alike": any(duty.share_alike for duty in duties),
                "urls": [duty.url for duty in duties if duty.url],
            }
        entry["documents"] += 1
        entry["tokens"] += line.tokens
        entry["bytes"] += line.n_bytes
        entry["sources"].add(line.source)
        if entry["must_name_authors"]:
            entry["attribution_owed"].add(line.attribution or line.source)
    for entry in bill.values():
        entry["sources"] = sorted(entry["sources"])
        entry["attribution_owed"] = sorted(entry["attribution_owed"])
    return dict(sorted(bill.items()))
