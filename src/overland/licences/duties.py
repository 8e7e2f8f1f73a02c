"""What the licences of a model's training text oblige a user of its weights to, read from its lineage.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from overland.errors import BrokenFileError, UsageError
from overland.licences.expressions import BadExpression, keys_of
from overland.licences.facts import Facts, facts


@dataclass(frozen=True)
class Duties:
    """The weights' own licence (None: no LICENSE file says), and what is owed for the text, by licence."""

    folder: Path
    weights: str | None
    licences: dict[str, dict[str, Any]]
    authorisations: list[dict[str, Any]] = field(default_factory=list)
    texts: tuple[str, ...] = ()
    """Licence and notice files that lie in the folder and travel with it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "weights": self.weights,
            "licences": {key: {**entry, "duties": duties_of(key)} for key, entry in self.licences.items()},
            "authorisations": self.authorisations,
            "together": self.together(),
            "licence_files": list(self.texts),
        }

    def together(self) -> list[str]:
        """What the weights' own licence and the text's licences come to for a user, and where they pull apart.

        Whether weights are an adaptation of their training text is not settled; what would follow is said, so that a
        person can decide. This is a reading of the licences' terms, not legal advice.
        """
        out = []
        if self.weights is None:
            out.append("the weights' licence is not stated: nothing may be assumed until whoever made them says it")
        else:
            out += [f"for the weights ({self.weights}): {duty}" for duty in duties_of(self.weights)]
        try:
            own = [facts(key) for key in keys_of(self.weights)] if self.weights else []
        except BadExpression:
            own = []
        named = sorted({who for entry in self.licences.values() for who in entry.get("attribution_owed", ())})
        if named:
            out.append(f"name the authors of the text where you pass the model or its lineage on ({len(named)} in all)")
        for key, entry in self.licences.items():
            known = _facts_of(key)
            if not entry.get("commercial_use", True) or any(not fact.commercial for fact in known):
                out.append(f"no commercial use of what was trained on {key}")
                if own and all(fact.commercial for fact in own):
                    out.append(f"conflict: the weights' licence {self.weights} permits commercial use, {key} does not")
            if any(not fact.derivatives for fact in known):
                out.append(f"{key} permits no adaptations: do not share outputs that repeat its text")
            if any(fact.share_alike for fact in known) and not any(fact.share_alike for fact in own):
                out.append(f"outputs that repeat {key} text stay under {key}, whatever the weights' licence is")
        for word in self.authorisations:
            if word.get("licence") == "*" or word.get("until"):
                end = f", until {word['until']}" if word.get("until") else ""
                out.append(f"rests on the word of {word.get('who')}{end}: ask them before you pass the weights on")
        return out

    def lines(self) -> list[str]:
        """The same for a person."""
        out = [f"weights        {self.weights or 'no LICENSE file says under which licence they are'}"]
        for key, entry in self.licences.items():
            sources = ", ".join(entry.get("sources", ())) or "no source named"
            tokens = int(entry.get("tokens", 0))
            out.append(f"trained on     {key}: {tokens:,} tokens of {sources}")
            out += [f"               you must {duty}" for duty in duties_of(key)]
            if entry.get("attribution_owed"):
                out.append(f"               to be named: {', '.join(entry['attribution_owed'])}")
        for word in self.authorisations:
            until = f" until {word['until']}" if word.get("until") else ""
            out.append(f"authorised     {word.get('licence')} by {word.get('who')}{until}: {word.get('reason')}")
        out += [f"together       {line}" for line in self.together()]
        out.append(f"carried along  {', '.join(self.texts) or 'no licence file lies beside the weights'}")
        return out


def duties_of(expression: str) -> list[str]:
    """What an SPDX expression asks for, in words."""
    try:
        known = [facts(key) for key in keys_of(expression)]
    except BadExpression:
        return ["read its own terms: it is no SPDX licence"]
    out = []
    if not all(fact.commercial for fact in known):
        out.append("make no commercial use of it")
    if not all(fact.derivatives for fact in known):
        out.append("share no adaptations of it")
    if any(fact.attribution for fact in known):
        out.append("name the authors")
    if any(fact.notice for fact in known):
        urls = ", ".join(fact.url for fact in known if fact.url)
        out.append(f"pass the licence's notice on{f' ({urls})' if urls else ''}")
    if any(fact.share_alike for fact in known):
        out.append("share adaptations under the same licence")
    return out


def _facts_of(expression: str) -> list[Facts]:
    try:
        return [facts(key) for key in keys_of(expression)]
    except BadExpression:
        return []


def duties(folder: str | Path) -> Duties:
    """Read DIR/lineage.json. Raises UsageError where there is none, BrokenFileError where it cannot be read."""
    folder = Path(folder)
    path = folder / "lineage.json"
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such model folder. A run leaves one at RUN/model.")
    if not path.is_file():
        raise UsageError(f"{path}: is missing, so nothing is known of this model's training text; ask whoever made it")
    try:
        lineage = json.loads(path.read_text(encoding="utf-8"))
        part = lineage if "licences" in lineage else lineage["corpus"]
        licences, words = dict(part["licences"]), list(part.get("authorisations", ()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenFileError(f"{path}: holds no bill of licences ({type(error).__name__}: {error})") from None
    texts = tuple(
        sorted(f.name for f in folder.iterdir() if f.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")))
    )
    weights = lineage.get("weights_licence") or lineage.get("licence")
    if weights is None and texts:
        from overland.licences.texts import recognise_licence

        main = next((name for name in texts if name.upper() in ("LICENSE", "LICENCE", "LICENSE.TXT")), None)
        weights = recognise_licence((folder / main).read_text(errors="replace")) if main else None
    return Duties(folder, weights, licences, [word for word in words if _relied_on(word, licences)], texts)


def _relied_on(word: dict[str, Any], licences: dict[str, Any]) -> bool:
    """Whether text is under the licence that a word of the recipe is about; a word about any licence always counts."""
    about = str(word.get("licence", "*"))
    for expression in licences:
        try:
            keys = {expression, *keys_of(expression)}
        except BadExpression:
            keys = {expression}
        if any(fnmatchcase(key, about) for key in keys):
            return True
    return about == "*"
