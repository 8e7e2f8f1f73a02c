"""How a web task is asked: families of prompts, split by hand into training and held-out ones.

Fields: `{s}` the person to start from, `{p}` the path from page to page to what is asked for: "friend > boss > town".
See prompts_terminal.
"""

from __future__ import annotations

TRAIN: tuple[str, ...] = (
    "open {s} on the site and tell me {p} there",
    "from {s} click along {p} and report it",
    "please visit {s} , next follow {p} for me",
    "i need you to open {s} and find {p} in it",
    "your task : page {s} , give {p} as one word",
    "for {s} what does the site say at {p} ?",
    "could you walk from {s} by {p} on the web ?",
    "go to {s} and write down only {p} as shown",
    "the page {s} links on ; name {p} with care",
    "we begin with {s} : what is {p} to you ?",
    "on the site of {s} try {p} and share it",
    "here is {s} ; answer with {p} of that page",
    "using the web look for {s} , send {p} back",
)

HELD_OUT: tuple[str, ...] = (
    "tell us of {s} : which {p} has it ?",
    "start at {s} , read {p} , then show it",
    "will you click {s} ? we want {p} now",
    "someone made page {s} ; get {p} today please",
)
