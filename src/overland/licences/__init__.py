"""Licences: SPDX expressions, what a licence permits and obliges, authorisations, bills of materials."""

from overland.licences.bill import BillLine, bill_of_materials
from overland.licences.decide import Authorisation, Decision, decide
from overland.licences.duties import Duties, duties, duties_of
from overland.licences.expressions import BadExpression, keys_of, normalise
from overland.licences.facts import Facts, facts
from overland.licences.names import PUBLIC_DOMAIN, creative_commons_urls, from_statement
from overland.licences.profiles import PROFILES, USES, Profile, profile
from overland.licences.texts import copyright_holders, recognise_licence, restriction_in, spdx_copyrights, spdx_lines

__all__ = [
    "PROFILES",
    "PUBLIC_DOMAIN",
    "USES",
    "Authorisation",
    "BadExpression",
    "BillLine",
    "Decision",
    "Duties",
    "Facts",
    "Profile",
    "bill_of_materials",
    "copyright_holders",
    "creative_commons_urls",
    "decide",
    "duties",
    "duties_of",
    "facts",
    "from_statement",
    "keys_of",
    "normalise",
    "profile",
    "recognise_licence",
    "restriction_in",
    "spdx_copyrights",
    "spdx_lines",
]
