"""How a finance task is asked: openings, links and closings, each split by hand into training and held-out ones.

Fields: `{s}` the firm to start from, `{p}` the path from it to what is asked for, as the steps of a plan are written:
"owner > partner > bestsales > debt" or "2021 > profit". A family is one opening, one link and one
closing; no part of a held-out family stands in a training family.
"""

from __future__ import annotations

from overland.environments.families import compose

TRAIN_OPENINGS = (
    "for firm",
    "take",
    "look up",
    "what does",
    "your task : firm",
    "please check firm",
    "i need from",
    "could you ask the table about",
    "the books of",
    "with",
    "one thing about",
    "we study",
    "using the data on",
    "here is firm",
    "now think of",
    "in the tables find",
    "my question is about",
    "go to firm",
    "hello , about",
    "some figures of",
)
TRAIN_LINKS = (
    "follow",
    ", then report",
    "and give",
    ": what is",
    ", find",
    "and answer",
    "only",
    ", please say",
    "; write down",
    ", go along",
    ", send",
    "and then show me",
    ", i want",
    "; tell me",
)
TRAIN_CLOSINGS = (
    "and tell me",
    "for us",
    "to me",
    "as one word",
    ", nothing else",
    "?",
    "there",
    "and stop",
    "with the data",
    "back",
    "please",
    "if you can",
    ".",
    "thanks",
)
HELD_OUT_OPENINGS = (
    "tell us about",
    "start at",
    "who knows firm",
    "our guest wants",
    "a word on",
    "this concerns",
)
HELD_OUT_LINKS = (
    ": which",
    ", read",
    "? get",
    ", bring",
    "; let us see",
)
HELD_OUT_CLOSINGS = (
    "has it ?",
    ", show it",
    "now",
    "today",
    "at once",
)

TRAIN = compose(TRAIN_OPENINGS, TRAIN_LINKS, TRAIN_CLOSINGS)
HELD_OUT = compose(HELD_OUT_OPENINGS, HELD_OUT_LINKS, HELD_OUT_CLOSINGS)
