"""Raw text to token shards: read, licence gate, rules, duplicates, personal data, tokenizer, shards, lineage.

All that can be refused is refused before anything is written. Files are written into a hidden folder beside `out`,
which takes its name when complete: an interrupted build leaves no half corpus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from overland import runs
from overland.corpus.clean import clean, split_documents
from overland.corpus.gather import open_sources, select_documents
from overland.corpus.place import check_target, finished_folder, recipe_hash
from overland.corpus.publish import reasons_of, write_corpus
from overland.corpus.report import CorpusReport
from overland.corpus.section import CorpusSection
from overland.errors import UsageError


def build(
    section: CorpusSection,
    out: str | Path,
    *,
    tokenizer_extra_text: Sequence[str] = (),
    progress: Callable[..., Any] = runs.progress,
) -> CorpusReport:
    """Build a corpus folder at `out` and say what was done.

    `tokenizer_extra_text`: representative rendered conversations, given `section.tokenizer_extra_share` of the
    tokenizer's training text. Raises UsageError before anything is written where there is nothing to read or nothing
    that may be used; OverlandError where the disk refuses.
    """
    started = time.monotonic()
    out = Path(out)
    recipe = recipe_hash(section, tokenizer_extra_text)
    check_target(out, recipe)
    sources = open_sources(section)
    with progress("corpus: read", int(section.max_megabytes * 1e6), "byte") as bar:
        documents = select_documents(section, sources, bar)
    clean(section, documents, progress)
    kept = [document for document in documents if document.kept]
    if not kept:
        reasons = ", ".join(f"{count} {why}" for why, count in reasons_of(documents).most_common(4))
        raise UsageError(
            f"corpus: nothing is left of {len(documents)} documents ({reasons}); loosen the rules or add text"
        )
    split_documents(section, kept)
    with finished_folder(out) as folder:
        return write_corpus(section, folder, out, documents, sources, recipe, tokenizer_extra_text, started, progress)
