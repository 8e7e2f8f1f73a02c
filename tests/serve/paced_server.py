"""Run as a process by test_lifecycle: a server whose model stops after three tokens until a line comes on stdin."""

from __future__ import annotations

import sys
import threading

from overland.chat import XTML
from overland.engine import AsyncEngine
from overland.serve import ServeSection, lifecycle, run

from .conftest import train_tokenizer
from .harness import MODEL, ScriptedEngine


class _Announcing(lifecycle._Server):
    def handle_exit(self, sig: int, frame: object) -> None:
        super().handle_exit(sig, frame)
        print("draining", flush=True)


def main() -> None:
    tokenizer = train_tokenizer()
    lifecycle._Server = _Announcing
    settings = ServeSection(port=0, drain_seconds=int(sys.argv[1]), api_key_env="OVERLAND_TEST_KEY")
    engine = ScriptedEngine(tokenizer)
    engine.pause_after = 3
    threading.Thread(target=lambda: sys.stdin.readline() and engine.go.set(), daemon=True).start()

    def say(line: str) -> None:
        print(line, flush=True)

    run(AsyncEngine(engine), tokenizer, XTML(), model_name=MODEL, settings=settings, announce=say)


if __name__ == "__main__":
    main()
