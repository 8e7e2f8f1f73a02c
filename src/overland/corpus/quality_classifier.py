"""A small quality classifier of fastText's kind: hashed words and word pairs, averaged, one linear layer, softmax.

Trained on a person's own examples ("keep these, not those") in seconds, in numpy. fastText's hidden layer is left
out: with as many hidden units as classes it gives the same family of decisions (Joulin et al. 2016, arXiv 1607.01759).
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overland.corpus.compiled import Packed, library, pointer
from overland.corpus.dedup_index import read_index, write_index
from overland.errors import UsageError

KIND = "quality classifier"
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Evaluation:
    """How well held-out texts are told apart; `confusion` [true, told]; `auc` of the first label against the rest."""

    texts: int
    accuracy: float
    auc: float
    precision: dict[str, float]
    recall: dict[str, float]
    confusion: list[list[int]]

    @classmethod
    def of(cls, labels: Sequence[str], confusion: NDArray[np.int64], auc: float) -> Evaluation:
        """All figures from the table of confusion and the area under the curve."""
        right = confusion.diagonal()
        precision = right / np.maximum(confusion.sum(axis=0), 1)
        recall = right / np.maximum(confusion.sum(axis=1), 1)
        return cls(
            texts=int(confusion.sum()),
            accuracy=float(right.sum() / max(1, confusion.sum())),
            auc=auc,
            precision=dict(zip(labels, precision.tolist(), strict=True)),
            recall=dict(zip(labels, recall.tolist(), strict=True)),
            confusion=confusion.tolist(),
        )

    def lines(self) -> list[str]:
        """The same for a person."""
        out = [f"held out   {self.texts} texts: {self.accuracy:.1%} told right, area under the curve {self.auc:.3f}"]
        for label, precision in self.precision.items():
            out.append(f"{label:<10} precision {precision:.3f}, recall {self.recall[label]:.3f}")
        return out


class QualityClassifier:
    """Scores texts under `labels`. `weights` [buckets, labels]."""

    def __init__(self, labels: Sequence[str], buckets: int = 1 << 18) -> None:
        if len(set(labels)) < 2 or len(set(labels)) != len(labels):
            raise UsageError(f"classifier: labels {list(labels)} must be two or more, none twice")
        self.labels, self.buckets = list(labels), buckets
        self.weights = np.zeros((buckets, len(labels)), dtype=np.float32)
        self.evaluation: Evaluation | None = None
        """Its figures on texts that it was not trained on; kept with it."""

    def features(self, raw: bytes) -> NDArray[np.int64]:
        """Buckets of a text's words and word pairs."""
        words = _words(raw)
        pairs = (words[:-1] * _MIX) ^ words[1:]
        mixed = np.concatenate([words, pairs]) * _MIX
        return (mixed >> np.uint64(32)).astype(np.int64) % self.buckets

    def train(self, texts: Packed, labels: Sequence[str], epochs: int = 5, rate: float = 0.5, seed: int = 0) -> None:
        """Stochastic gradient descent with a rate that falls to 0. Raises UsageError for a label that is not known."""
        unknown = sorted(set(labels) - set(self.labels))
        if unknown or len(labels) != len(texts):
            raise UsageError(f"classifier: {len(texts)} texts, {len(labels)} labels, of them not known: {unknown}")
        rows = [self.features(texts.raw(i)) for i in range(len(texts))]
        target = np.eye(len(self.labels), dtype=np.float32)[[self.labels.index(label) for label in labels]]
        rng = np.random.Generator(np.random.Philox(key=seed))
        order = np.concatenate([rng.permutation(len(rows)) for _ in range(epochs)])
        for step, i in enumerate(order.tolist()):
            if not len(rows[i]):
                continue
            error = target[i] - _softmax(self.weights[rows[i]].mean(axis=0))
            # The mean's gradient is shared by the features; fastText steps each by the whole of it, and so do we.
            np.add.at(self.weights, rows[i], rate * (1 - step / len(order)) * error)

    def scores(self, texts: Packed) -> NDArray[np.float32]:
        """Probability of each label, [texts, labels]; even where a text has no words."""
        rows = (self.features(texts.raw(i)) for i in range(len(texts)))
        means = [self.weights[row].mean(axis=0) if len(row) else np.zeros(len(self.labels), np.float32) for row in rows]
        return np.stack([_softmax(mean) for mean in means]) if means else np.zeros((0, len(self.labels)), np.float32)

    def evaluate(self, texts: Packed, labels: Sequence[str]) -> Evaluation:
        """Figures on texts that were not trained on."""
        scores = self.scores(texts)
        told = scores.argmax(axis=1)
        true = np.array([self.labels.index(label) for label in labels])
        confusion = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        np.add.at(confusion, (true, told), 1)
        return Evaluation.of(self.labels, confusion, area_under_curve(scores[:, 0], true == 0))

    def save(self, path: str | Path) -> None:
        """One checksummed file, written atomically; only the buckets that training touched."""
        used = np.flatnonzero(self.weights.any(axis=1))
        arrays: dict[str, NDArray[Any]] = {"buckets": used, "weights": self.weights[used]}
        if self.evaluation:
            arrays["confusion"] = np.array(self.evaluation.confusion, dtype="<i8")
            arrays["auc"] = np.array([self.evaluation.auc])
        write_index(path, KIND, {"format": 1}, [str(self.buckets), *self.labels], arrays)

    @classmethod
    def load(cls, path: str | Path) -> QualityClassifier:
        """Raises BrokenFileError naming a damaged file."""
        (buckets, *labels), arrays = read_index(path, KIND, {"format": 1})
        model = cls(labels, int(buckets))
        model.weights[arrays["buckets"]] = arrays["weights"]
        if "confusion" in arrays:
            model.evaluation = Evaluation.of(labels, arrays["confusion"], float(arrays["auc"][0]))
        return model


def train_classifier(
    examples: Mapping[str, Sequence[str]], held_out: float = 0.2, epochs: int = 5, seed: int = 0
) -> QualityClassifier:
    """A classifier trained on texts by label, with its evaluation on the share of them that is `held_out`.

    Equal texts count once and stay on one side. Raises UsageError where a label has too few texts, or two share one.
    """
    labels = list(examples)
    where: dict[str, str] = {}
    for label, texts in examples.items():
        for text in texts:
            if where.setdefault(text, label) != label:
                raise UsageError(f"classifier: a text is an example of both {where[text]} and {label}: {text[:60]!r}")
    digests = {text: hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "surrogatepass")).digest() for text in where}
    drawn = sorted(where, key=lambda text: digests[text])
    parts: tuple[list[str], list[str]] = ([], [])
    for label in labels:
        own = [text for text in drawn if where[text] == label]
        cut = max(1, round(held_out * len(own)))
        if len(own) - cut < 5:
            raise UsageError(
                f"classifier: label {label} has {len(own)} different texts; give at least 10, better hundreds"
            )
        parts[1].extend(own[:cut])
        parts[0].extend(own[cut:])
    model = QualityClassifier(labels)
    model.train(Packed.of(parts[0]), [where[text] for text in parts[0]], epochs, seed=seed)
    model.evaluation = model.evaluate(Packed.of(parts[1]), [where[text] for text in parts[1]])
    return model


def area_under_curve(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> float:
    """Probability that a positive scores above a negative, ties counted half; nan where one kind is missing."""
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def _softmax(x: NDArray[np.float32]) -> NDArray[np.float32]:
    e = np.exp(x - x.max())
    return e / e.sum()


def _words(raw: bytes) -> NDArray[np.uint64]:
    room = len(raw) // 2 + 2
    hashes, starts, ends = np.empty((3, room), dtype=np.uint32)
    run = library().overland_words
    run.restype = ctypes.c_int64
    count = run(ctypes.c_char_p(raw), ctypes.c_int64(len(raw)), pointer(hashes), pointer(starts), pointer(ends))
    return hashes[:count].astype(np.uint64)
