"""The independent encoder that the renderings are held against: mlx-vlm's (MIT) `models/kimi_k3/encoding_k3.py`.

Only that file is loaded, by its path, so that neither mlx nor the rest of the package has to be importable.
Write the golden file anew, with mlx-vlm on the path:  python -m tests.chat.reference tests/chat/data/xtml_golden.json
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from .cases import CASES, Case

PEER = "mlx-vlm 0.7.10"


def find_encoder() -> Any | None:
    """The peer's encoder module, or None where mlx-vlm is not installed."""
    found = importlib.util.find_spec("mlx_vlm")  # a top-level name: finds it without importing it
    for folder in (found.submodule_search_locations or []) if found else []:
        file = Path(folder) / "models" / "kimi_k3" / "encoding_k3.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("peer_encoding_k3", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
    return None


def peer_segments(encoder: Any, case: Case) -> list[list[Any]]:
    """[text, is special] of every segment, as the peer renders the case."""
    options = copy.deepcopy(case.get("options", {}))
    keywords: dict[str, Any] = {}
    if "effort" in options:
        keywords["thinking_effort"] = options.pop("effort")
    keywords["add_generation_prompt"] = options.pop("generate", True)
    segments = encoder.build_chat_segments(
        copy.deepcopy(case["messages"]), copy.deepcopy(case.get("tools")), **keywords, **options
    )
    return [[segment.text, bool(segment.allow_special)] for segment in segments]


if __name__ == "__main__":
    peer = find_encoder()
    if peer is None:
        sys.exit("mlx-vlm is not installed")
    lines = [json.dumps({"name": c["name"], "segments": peer_segments(peer, c)}, ensure_ascii=False) for c in CASES]
    text = f'{{"peer": "{PEER}", "cases": [\n' + ",\n".join(lines) + "\n]}\n"
    Path(sys.argv[1]).write_text(text, encoding="utf-8")
