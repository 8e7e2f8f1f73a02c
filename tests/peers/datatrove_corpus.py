"""Run inside a virtual environment that has datatrove (see test_corpus_peers.py): prints JSON.

python datatrove_corpus.py A B OUT   builds A and B into OUT/here, and into OUT/steps by datatrove's local executor
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    from datatrove.executor import LocalPipelineExecutor

    from overland.corpus import CorpusSection, build
    from overland.corpus.runner_datatrove import corpus_steps

    out = Path(sys.argv[3])
    section = CorpusSection(text=tuple(sys.argv[1:3]), stdlib=False, vocab_size=320, heldout=0.2, shard_tokens=4096)
    build(section, out / "here")
    executor = None
    for number, (step, tasks) in enumerate(zip(corpus_steps(section, out / "steps"), (2, 1, 2, 1), strict=True)):
        executor = LocalPipelineExecutor(
            [step], tasks=tasks, workers=2, logging_dir=str(out / f"logs-{number}"), depends=executor
        )
    assert executor is not None
    executor.run()
    done: dict[str, int] = {}
    for path in sorted(out.glob("logs-*/stats.json")):
        for step in json.loads(path.read_text()):
            for name, figures in step["stats"].items():
                done[name] = figures["total"] if isinstance(figures, dict) else figures
    print(json.dumps({"read": done.get("pieces read"), "finished": done.get("pieces finished")}))


if __name__ == "__main__":
    main()
