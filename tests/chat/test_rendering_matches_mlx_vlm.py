"""Renderings held, segment by segment, against mlx-vlm's Kimi K3 encoder (MIT), an independent implementation.

Its renderings of all cases are kept in data/xtml_golden.json; where mlx-vlm is installed the file is checked too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overland.chat import XTML, Message, ToolSpec

from .cases import CASES, Case
from .reference import find_encoder, peer_segments

GOLDEN = {
    entry["name"]: entry["segments"]
    for entry in json.loads((Path(__file__).parent / "data" / "xtml_golden.json").read_text(encoding="utf-8"))["cases"]
}


def our_segments(case: Case) -> list[list[Any]]:
    messages = [Message.from_openai(message) for message in case["messages"]]
    tools = [ToolSpec.from_openai(tool) for tool in case.get("tools", [])]
    return [[segment.text, segment.special] for segment in XTML().render(messages, tools, **case.get("options", {}))]


def test_every_case_has_a_golden_rendering():
    assert sorted(GOLDEN) == sorted(case["name"] for case in CASES)
    assert len(GOLDEN) == len(CASES) >= 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_segments_equal_the_golden_rendering(case: Case):
    assert our_segments(case) == GOLDEN[case["name"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_segments_equal_the_installed_encoder(case: Case):
    encoder = find_encoder()
    if encoder is None:
        pytest.skip("mlx-vlm is not installed (pip install --no-deps mlx-vlm==0.7.10); its golden file was checked")
    assert our_segments(case) == peer_segments(encoder, case) == GOLDEN[case["name"]]
