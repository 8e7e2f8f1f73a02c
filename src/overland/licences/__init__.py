"""Licences: SPDX expressions, what a licence permits and obliges, authorisations, bills of materials."""

from overland.licences.bill import BillLine, bill_of_materials
from overland.licences.decide import Authorisation, Decision, decide
from overland.licences.duties import Duties, duties, duties_of
from overland.licences.expressions import BadExpression, keys_of, normalise
from overland.licences.facts import Facts, facts
from overland.licences.profiles import PROFILES, Profile
from overland.licences.texts import recognise_licence, spdx_lines

__all__ = [
    "PROFILES",
    "Authorisation",
    "BadExpression",
    "BillLine",
    "Decision",
    "Duties",
    "Facts",
    "Profile",
    "bill_of_materials",
    "decide",
    "duties",
    "duties_of",
    "facts",
    "keys_of",
    "normalise",
    "recognise_licence",
    "spdx_lines",
]
