"""How a finance task is asked: families of prompts, split by hand into training and held-out ones.

Fields: `{s}` the firm to start from, `{p}` the path from it to what is asked for, as the steps of a plan are written:
"owner > partner > bestsales > debt" or "2021 > profit". See also prompts_terminal.
"""

from __future__ import annotations

TRAIN: tuple[str, ...] = (
    "for firm {s} follow {p} and tell me",
    "take {s} , then report {p} for us",
    "look up {s} and give {p} to me",
    "what does {s} have at {p} ? i want it",
    "your task : firm {s} , find {p} in the tables",
    "please check firm {s} and answer {p} as one word",
    "i need from {s} only {p} , nothing else",
    "could you ask the table about {s} for {p} ?",
    "the books of {s} : what is {p} there ?",
    "with {s} given , write down {p} as asked",
    "one thing about {s} please : say {p} and stop",
    "we study {s} ; go along {p} with the data",
    "using the data on {s} , send {p} back",
)

HELD_OUT: tuple[str, ...] = (
    "tell us about {s} : which {p} has it ?",
    "start at {s} , read {p} , then show it",
    "who knows firm {s} ? get {p} now please",
    "now open {s} in the tables , bring {p} today",
)
