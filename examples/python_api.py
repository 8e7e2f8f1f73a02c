"""The Python face: a model, its tokenizer, an engine, an environment.

python examples/python_api.py runs/quickstart/model
"""

from __future__ import annotations

import asyncio
import sys

import torch

import overland
from overland.engine import Sampling


def main(folder: str) -> None:
    """Load a model folder, look at its next-token guess, and let it try one task."""
    model = overland.load_model(folder).eval()
    tokenizer = overland.load_tokenizer(folder)
    ids = torch.tensor([tokenizer.encode("import os\nimport ")])
    with torch.inference_mode():
        guess = int(model(ids).logits[0, -1].argmax())
    print(f"after 'import os / import ' the likeliest token is {tokenizer.decode([guess])!r}")

    policy = overland.LocalPolicy(overland.Engine(model), tokenizer)
    task = overland.load_environment("finance").task("held_out", level=0, seed=1)

    async def once() -> None:
        async with policy.session():
            turn = await policy.respond(
                task.messages(), task.tool_specs(), "high", Sampling(temperature=0.0, max_tokens=96)
            )
        print(f"asked: {task.prompt}")
        print(f"calls: {[call.arguments for call in turn.message.tool_calls]}, right is {dict(task.steps[0].args)}")

    asyncio.run(once())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
