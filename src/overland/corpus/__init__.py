"""Corpus: raw text to licensed, clean, deduplicated, de-identified token shards with lineage, and their loading."""

from overland.corpus.build import build
from overland.corpus.loader import MixtureLoader, TokenLoader, heldout_documents
from overland.corpus.lookup import inspect, inspect_document, read_decisions, read_documents_table
from overland.corpus.remove import Removal, remove
from overland.corpus.report import CorpusReport
from overland.corpus.section import (
    AuthorisationSection,
    ClassifierSection,
    CodeRules,
    CorpusSection,
    DecontaminationSection,
    DuplicateIndexSection,
    LanguageSection,
    MixtureSection,
    MixtureStage,
    ProseRules,
    ScaleSection,
    SourceSection,
)

__all__ = [
    "AuthorisationSection",
    "ClassifierSection",
    "CodeRules",
    "CorpusReport",
    "CorpusSection",
    "DecontaminationSection",
    "DuplicateIndexSection",
    "LanguageSection",
    "MixtureLoader",
    "MixtureSection",
    "MixtureStage",
    "ProseRules",
    "Removal",
    "ScaleSection",
    "SourceSection",
    "TokenLoader",
    "build",
    "heldout_documents",
    "inspect",
    "inspect_document",
    "read_decisions",
    "read_documents_table",
    "remove",
]
