"""Bill of materials: what a corpus (and so a model) is made of, by licence, and what is owed for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from overland.licences.expressions import keys_of
from overland.licences.facts import Facts, facts
from overland.licences.profiles import Rule


@dataclass(frozen=True)
class BillLine:
    """A document that is used, or several alike: the licence relied upon, their source, and their weight together."""

    licence: str
    source: str
    tokens: int
    n_bytes: int
    attribution: str = ""
    url: str = ""
    documents: int = 1


def bill_of_materials(
    lines: Iterable[BillLine], rule: Callable[[str], Rule | None] = lambda key: None
) -> dict[str, dict[str, Any]]:
    """By licence: documents, tokens, bytes, sources, and the obligations.

    `attribution_owed` lists whom to name; it is empty where the licence asks for nobody to be named. `rule`: the
    rule of a policy for a key, whose word on attribution and share-alike goes before the licence's own.
    """
    bill: dict[str, dict[str, Any]] = {}
    for line in lines:
        entry = bill.get(line.licence)
        if entry is None:
            duties = [_ruled(facts(key), rule(key)) for key in keys_of(line.licence)]
            entry = bill[line.licence] = {
                "documents": 0,
                "tokens": 0,
                "bytes": 0,
                "sources": set(),
                "attribution_owed": set(),
                "must_name_authors": any(duty.attribution for duty in duties),
                "must_carry_notice": any(duty.notice for duty in duties),
                "share_alike": any(duty.share_alike for duty in duties),
                "commercial_use": all(duty.commercial for duty in duties),
                "derivatives": all(duty.derivatives for duty in duties),
                "urls": [duty.url for duty in duties if duty.url],
            }
        entry["documents"] += line.documents
        entry["tokens"] += line.tokens
        entry["bytes"] += line.n_bytes
        entry["sources"].add(line.source)
        if entry["must_name_authors"]:
            named = f"{line.attribution} ({line.url})" if line.attribution and line.url else line.attribution
            entry["attribution_owed"].add(named or line.url or line.source)
    for entry in bill.values():
        entry["sources"] = sorted(entry["sources"])
        entry["attribution_owed"] = sorted(entry["attribution_owed"])
    return dict(sorted(bill.items()))


def _ruled(duty: Facts, rule: Rule | None) -> Facts:
    if rule is None:
        return duty
    return replace(
        duty,
        attribution=duty.attribution if rule.attribution is None else rule.attribution,
        share_alike=duty.share_alike if rule.share_alike is None else rule.share_alike,
        commercial=duty.commercial and "commercial" in rule.uses,
    )
