"""Talk to a served model with the official OpenAI client, one tool included.

overland serve runs/quickstart/model --port 8000 &
python examples/chat.py http://127.0.0.1:8000/v1 "how many lines are in chat.py ?"
"""

from __future__ import annotations

import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "sh",
        "description": "run a shell command",
        "parameters": {
            "type": "object",
            "properties": {"cmd": {"type": "string"}},
            "required": ["cmd"],
            "additionalProperties": False,
        },
    },
}


def main(url: str, question: str) -> None:
    """Ask once and print the parts of the answer."""
    client = OpenAI(base_url=url, api_key="none")
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        tools=[TOOL],
        reasoning_effort="high",
        max_tokens=128,
        temperature=0,
    )
    message = answer.choices[0].message
    print("thinks ", getattr(message, "reasoning_content", None) or "(nothing)")
    for call in message.tool_calls or []:
        print("calls  ", call.function.name, call.function.arguments)
    print("answers", message.content or "(nothing)")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
