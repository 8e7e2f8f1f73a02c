"""Which licence a file is under, and what says so. Evidence that disagrees is no evidence: the file is dropped.

Order: SPDX lines in the file's header, the recipe's word for the folder, the licence files at the folder's root. What
is nearer to the file wins only if it does not contradict what is farther: a file that says CC0 in a folder that says
GPL may have been copied from anywhere.
"""

from __future__ import annotations

from overland.corpus.sources import Source
from overland.licences import BadExpression, keys_of, normalise, spdx_lines


def find_evidence(source: Source, text: str) -> tuple[str, str, str]:
    """(expression, evidence, conflict): all are "" where nothing is known; `conflict` says why the file is dropped."""
    stated = spdx_lines(text)
    if len({_normal(expression) for expression in stated}) > 1:
        return "", "", f"conflicting licences: its header says {' and '.join(stated[:3])}"
    folder, folder_evidence, conflict = _folder(source)
    if stated:
        header = _normal(stated[0])
        if conflict or (folder and not _agree(header, folder)):
            where = conflict or f"its header says {header}, {folder_evidence} says {folder}"
            return "", "", where if where.startswith("conflicting") else f"conflicting licences: {where}"
        return header, "SPDX line in the file", ""
    return folder, folder_evidence, conflict


def _folder(source: Source) -> tuple[str, str, str]:
    known = {name: key for name, key in source.folder_licences.items() if key}
    unknown = [name for name, key in source.folder_licences.items() if not key]
    if source.declared:
        for name, key in known.items():
            if not _agree(source.declared, key):
                reason = f"conflicting licences: {source.declared_by} says {source.declared}, {name} says {key}"
                return "", "", reason
        return source.declared, source.declared_by, ""
    if unknown or not known:
        return "", f"{unknown[0]} is of no known licence" if unknown else "", ""
    if len(set(known.values())) > 1:
        return "", "", "conflicting licences: " + ", ".join(f"{name} says {key}" for name, key in known.items())
    name, key = next(iter(known.items()))
    return key, name, ""


def _agree(a: str, b: str) -> bool:
    try:
        return bool(set(keys_of(a)) & set(keys_of(b)))
    except BadExpression:
        return False


def _normal(expression: str) -> str:
    try:
        return normalise(expression)
    except BadExpression:
        return expression
