"""How a task is asked: openings, links and closings, each split by hand into training and held-out ones.

A prompt is an opening, the start ("firm zumi"), a link, the path from there to what is asked for, written as the steps
of a plan are ("firm>owner>partner>debt."), and a closing. Words that open some prompts link others, so that what
follows "for" or "see" is not always the start. No part of a held-out family stands in a training family: no
five words in a row of a held-out prompt occur in a training prompt. No part holds a word that a path is made of.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

# fmt: off
OPENINGS: Mapping[str, Sequence[str]] = {
    "train": (
        "take", "from", "begin with", "for", "look up", "your task :", "please check", "i need from",
        "could you ask about", "with", "one thing about", "using", "here is", "now think of",
        "my question is about", "go to", "hello , about", "we begin with", "see", "please visit", "find",
        "somebody asked about", "let me know of", "look at", "work on", "consider", "i am looking at",
        "we are asked about", "then comes", "the first is", "begin at", "use", "in this case",
        "for my notes ,", "our job :", "please go from", "it all begins at", "given", "once more",
        "regarding", "this time it is", "first find", "can you help with", "do this for", "let us take",
        "about", "so ,", "the name is",
    ),
    "held_out": (
        "tell us about", "start at", "who knows", "our guest wants", "an idea on", "this concerns",
        "will you see", "someone left",
    ),
}
LINKS: Mapping[str, Sequence[str]] = {
    "train": (
        ", then report", "and give", ": what is", ", find", "and answer", "only", ", please say", "; write down",
        ", go along", ", send", "and then show me", ", i want", "; tell me", "and tell me", ", click along",
        "and find", ", give", ", by", "; name", ", answer with", "and report", ", try", "; share", ":", "- do",
        "and do", "; now", ", the way is", "takes", "with path", ", in order", "along", ", please", "and you get",
        "; i ask for", ", what about", ", see", ", for me", "; look at", ", looking for", ", we use", "; go to",
        ", we find", "; with this", "- begin with", ", from there",
    ),
    "held_out": (": which", ", walk", "? get", ", bring", "; let us see", ", we look for"),
}
CLOSINGS: Mapping[str, Sequence[str]] = {
    "train": (
        "and tell me", "for us", "to me", "nothing else", "?", "there", "and stop", "with the data", "back",
        "please", "if you can", "thanks", "for me", "in it", "as shown", "with care", "to you", "of it", "soon", "",
        "and that is all", "; thank you", "i am waiting", "that is my question", "then stop", "only that", "in short",
        "no more", "when you can", "before lunch", "it matters", "for the report",
    ),
    "held_out": ("has it ?", ", show it", "now", "today", "at once", "we would like it"),
}
# fmt: on


def ask(rng: random.Random, split: str, start: str, path: Sequence[str]) -> str:
    """A prompt of a split: from `start` along `path`, in a family drawn by `rng`."""
    opening, link, closing = (rng.choice(parts[split]) for parts in (OPENINGS, LINKS, CLOSINGS))
    return f"{opening} {start} {link} {'>'.join(path)}. {closing}".rstrip()


def halfway(rng: random.Random, level: int) -> int:
    """How many steps of its path lie behind the start of a task: none, except that every other easy task has some.

    So that a path's length says nothing about the calls it takes: what comes next is what stands next on it.
    """
    return rng.choice((0, 0, 1, 2)) if level < 2 else 0
