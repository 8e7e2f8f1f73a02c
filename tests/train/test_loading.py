"""A pretraining recipe's mixture: its parts, stages and caps become the loader's, and the model sees no leak.

Packed rows are held against the model on each document alone.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from overland.corpus import CorpusSection, MixtureLoader, SourceSection, TokenLoader, build, read_documents_table
from overland.errors import UsageError
from overland.model import Decoder, Packing, initialise, preset
from overland.train import Drilled, PretrainSection, open_loader
from tests.corpus.conftest import prose, quiet

MIXTURE = {
    "weights": {"prose": 2.0, "prose/de": 1.0, "code": 1.0},
    "stage": [{"share": 3, "length": 16}, {"share": 1, "length": 64, "weights": {"code": 1.0}}],
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prose in two languages and code, from three sources."""
    root = tmp_path_factory.mktemp("mixture")
    for name in ("en", "de", "code"):
        (root / name).mkdir()
        for number in range(12):
            words = prose(f"{name} {number}", 60)
            text = "".join(f"x_{word} = {word!r}\n" for word in set(words.split())) if name == "code" else words
            (root / name / f"{number}.{'py' if name == 'code' else 'txt'}").write_text(text)
    sources = tuple(
        SourceSection(name=name, path=str(root / name), licence="CC0-1.0", language="de" if name == "de" else None)
        for name in ("en", "de", "code")
    )
    section = CorpusSection(
        source=sources, stdlib=False, vocab_size=320, heldout=0.05, span_words=0, near_duplicate=1.0
    )
    build(section, root / "out", progress=quiet)
    return root / "out"


def section_of(**fields: object) -> PretrainSection:
    return PretrainSection(**{"steps": 40, "batch": 8, "length": 32, "seed": 3, **fields})  # type: ignore[arg-type]


def test_without_a_mixture_the_corpus_is_one_stream(corpus: Path) -> None:
    assert isinstance(open_loader(corpus, section_of()), TokenLoader)


def test_stages_have_their_length_batch_and_parts(corpus: Path) -> None:
    loader = open_loader(corpus, section_of(mixture={**MIXTURE, "repeats": 50}))
    assert isinstance(loader, MixtureLoader)
    assert [(s.rows, s.length, s.batch) for s in loader.plan.stages] == [(480, 16, 16), (40, 64, 4)]
    assert len(loader) == 40
    assert {batch[0].shape for batch in loader} == {(16, 16), (4, 64)}
    counts = Counter(loader.plan.row(i).domain for i in range(480))
    assert {name: round(count / 480, 2) for name, count in counts.items()} == {
        "prose": 0.5,
        "prose/de": 0.25,
        "code": 0.25,
    }
    assert {loader.plan.row(i).domain for i in range(480, 520)} == {"code"}
    # German prose is its own part, and so not in that of prose.
    rows = {row["id"]: row for row in read_documents_table(corpus).to_pylist()}
    stream = loader.domains["prose"].stream
    for name, part in loader.domains.items():
        found = {(rows[stream.ids[i]]["domain"], rows[stream.ids[i]]["language"] == "de") for i in part.ordinals}
        assert found == {(name.split("/")[0], name == "prose/de")}


def test_stages_without_weights_take_every_domain_as_much_as_there_is(corpus: Path) -> None:
    loader = open_loader(corpus, section_of(mixture={"stage": [{"share": 1, "length": 16}], "repeats": 50}))
    assert isinstance(loader, MixtureLoader)
    whole = sum(map(len, loader.domains.values()))
    assert loader.plan.shares[0] == pytest.approx({name: len(part) / whole for name, part in loader.domains.items()})


@pytest.mark.parametrize(
    ("mixture", "said"),
    [
        ({"weights": {"latin": 1.0}}, r"belongs to 'latin'; there are code, code/python, prose, prose/de"),
        ({"weights": {"source:xx": 1.0}}, "belongs to 'source:xx'"),
        ({"weights": {"code": 1.0}, "repeats": 0.1}, r"caps allow \d+; raise mixture.repeats"),
        ({"weights": {"code": 0.0}}, "every weight is 0"),
        ({"stage": [{"share": 1000}, {"share": 1}]}, r"stage\[1\].share = 1 is no whole step of 40"),
    ],
)
def test_mixture_that_cannot_be_had_is_refused(corpus: Path, mixture: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_loader(corpus, section_of(mixture=mixture))


def test_drilled_stream_is_the_same_for_two_ranks_and_after_a_resume_in_the_second_stage(corpus: Path) -> None:
    section = section_of(mixture={**MIXTURE, "repeats": 50})

    def make(rank: int = 0, world: int = 1) -> Drilled:
        return Drilled(open_loader(corpus, section, rank, world), 0.3, 300, section.seed, rank, world)

    alone, ranks = make(), [make(rank, 2) for rank in range(2)]
    for step in range(section.steps):
        whole, parts = alone.next(), [rank.next() for rank in ranks]
        for name in ("inputs", "targets", "weights"):
            assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts]))
        if step == 34:
            state = json.loads(json.dumps(alone.state_dict()))
    again = make(1, 2)
    again.load_state_dict(state)
    left = [again.next() for _ in range(35, section.steps)]
    assert torch.equal(left[-1].inputs, parts[1].inputs)
    with pytest.raises(UsageError, match="beyond the plan's 40"):
        again.next()


def test_documents_in_a_packed_row_do_not_see_each_other(corpus: Path) -> None:
    loader = open_loader(corpus, section_of(batch=1, length=512, mixture={"weights": {"prose": 1.0}, "repeats": 99}))
    inputs, _, documents = loader.next()
    torch.manual_seed(0)
    model = initialise(Decoder(preset("nano", vocab_size=320)), "standard", 0).eval()
    ids = torch.from_numpy(inputs)
    with torch.no_grad():
        packed = model(ids, packing=Packing(documents=torch.from_numpy(documents).long())).logits[0]
        bounds = [0, *(np.flatnonzero(np.diff(documents[0])) + 1).tolist(), ids.shape[1]]
        assert len(bounds) > 3
        for start, end in pairwise(bounds):
            alone = model(ids[:, start:end]).logits[0]
            torch.testing.assert_close(packed[start:end], alone, rtol=1e-4, atol=1e-4)
