"""Texts that a person shows as examples, for training a classifier: read like a corpus, but nothing is built."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from overland.corpus.quality_classifier import QualityClassifier, train_classifier
from overland.corpus.reading import read_documents
from overland.corpus.sources import named_source
from overland.errors import UsageError

LARGEST = 4_000_000
LONGEST = 20_000  # characters of an example: a book must not count as one text of its length


def classifier_from(keep: Iterable[str], reject: Iterable[str], out: Path, seed: int = 0) -> QualityClassifier:
    """Train on the texts of folders, files or URLs and write the classifier to `out`.

    Raises UsageError where a place cannot be read or has too few texts. Documentation strings of modules count with
    their modules' code as texts of their own.
    """
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; name a file")
    examples = {"keep": _texts(keep, "--keep"), "reject": _texts(reject, "--reject")}
    model = train_classifier(examples, seed=seed)
    model.save(out)
    return model


def _texts(places: Iterable[str], option: str) -> list[str]:
    out = []
    for place in places:
        source = named_source(place, option)
        for entry in source.files:
            out += [d.text[:LONGEST] for d in read_documents(source, entry, LARGEST) if d.kept and d.text.strip()]
    return out
