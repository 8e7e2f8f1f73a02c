"""How a web task is asked: openings, links and closings, each split by hand into training and held-out ones.

Fields: `{s}` the person to start from, `{p}` the path from page to page to what is asked for: "friend > boss > town". A
family is one opening, one link and one closing; no part of a held-out family stands in a training family.
"""

from __future__ import annotations

from overland.environments.families import compose

TRAIN_OPENINGS = (
    "open",
    "from",
    "please visit",
    "i need you to open",
    "your task : page",
    "for",
    "could you walk from",
    "go to",
    "the page",
    "we begin with",
    "on the site of",
    "here is",
    "using the web look for",
    "look at",
    "find the person",
    "somebody asked about",
    "the web page of",
    "let me know of",
    "now go online to",
    "hello , about",
)
TRAIN_LINKS = (
    "and tell me",
    ", click along",
    ", next follow",
    "and find",
    ", give",
    ": what does it say at",
    ", by",
    "and write down",
    "; name",
    ", answer with",
    ", send",
    "and report",
    ", try",
    "; share",
)
TRAIN_CLOSINGS = (
    "there",
    "for me",
    "in it",
    "as one word",
    "?",
    "on the web",
    "as shown",
    "with care",
    "to you",
    "back",
    "please",
    "of that page",
    ".",
    "thanks",
)
HELD_OUT_OPENINGS = (
    "tell us of",
    "start at",
    "will you visit",
    "someone made page",
    "a look at",
    "this is about",
)
HELD_OUT_LINKS = (
    ": which",
    ", read",
    "? we want",
    "; get",
    ", see",
)
HELD_OUT_CLOSINGS = (
    "has it ?",
    ", then show",
    "now",
    "today",
    "at once",
)

TRAIN = compose(TRAIN_OPENINGS, TRAIN_LINKS, TRAIN_CLOSINGS)
HELD_OUT = compose(HELD_OUT_OPENINGS, HELD_OUT_LINKS, HELD_OUT_CLOSINGS)
