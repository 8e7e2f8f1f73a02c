"""Several paths on a trained model: each is what the request says by itself, and those that agree are counted."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from benchmarks.serve_agents import tasks
from overland.chat import XTML
from overland.engine import AsyncEngine
from overland.pipeline.opening import open_engine
from overland.serve import ServeSection, background, create_app

RUN = Path(os.environ.get("OVERLAND_QUICKSTART_RUN", ""))
ASKED, PATHS = 4, 3


@pytest.mark.skipif(not (RUN / "model/config.json").exists(), reason="needs a quickstart (OVERLAND_QUICKSTART_RUN)")
def test_a_path_is_what_its_seed_says_alone() -> None:
    engine, tokenizer = open_engine(RUN / "model", prefill_chunk=512)
    settings = ServeSection(port=0)
    app = create_app(AsyncEngine(engine), tokenizer, XTML(), model_name="trained", settings=settings)
    chosen = tasks(RUN)
    voted = sampled = 0
    with background(app, settings) as url, httpx.Client(base_url=url, timeout=120) as client:

        def said(of: tuple[object, object], seed: int = 0, **fields: object) -> tuple[object, dict[str, object]]:
            body = {"model": "trained", "messages": of[0], "tools": of[1], "max_tokens": 120, "seed": seed, **fields}
            answer = client.post("/v1/chat/completions", json={"reasoning_effort": "max", **body}).json()
            message = answer["choices"][0]["message"]
            calls = [call["function"] for call in message.get("tool_calls") or []]
            return calls or (message["content"] or "").split(), {**answer["choices"][0], "usage": answer["usage"]}

        for task in chosen[:: len(chosen) // ASKED][:ASKED]:
            greedy, _ = said(task, temperature=0)
            picked, found = said(task, seed=1, temperature=1.5, explore={"paths": PATHS})
            explored, usage = found["explored"], found["usage"]
            assert isinstance(explored, dict)
            assert isinstance(usage, dict)
            assert explored["paths"] == len(explored["tokens"]) == PATHS
            assert usage["completion_tokens"] == sum(explored["tokens"])
            voted += picked == greedy
            # path i is what the request says by itself with seed + i
            alone = [said(task, seed=1 + i, temperature=1.5)[0] for i in range(PATHS)]
            assert picked == alone[explored["path"]]
            assert explored["agreeing"] >= alone.count(picked)  # arguments in another order agree too
            sampled += sum(one == greedy for one in alone)
    print(f"as greedily: {voted} of {ASKED} by vote, {sampled} of {ASKED * PATHS} samples")
