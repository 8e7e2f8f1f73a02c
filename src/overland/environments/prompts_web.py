"""How a web task is asked: families of prompts, split by hand into training and held-out ones.

Fields: `{s}` the person to start from, `{r}` the relations in the order they are followed in, `{t}` the attribute.
A chain family is (template, the words between two relations). See prompts_terminal.
"""

from __future__ import annotations

TRAIN_PAGE: tuple[str, ...] = (
    "open the page of {s} and tell me the {t}",
    "look at {s} on the site and report the {t}",
    "please visit {s} , then say which {t} is there",
    "i need you to open {s} and find the {t}",
    "your task : the page {s} , give its {t}",
    "for {s} , what does the page say as {t} ?",
    "could you check {s} on the web for the {t} ?",
    "go to {s} and write down only the {t} please",
    "take the page about {s} and name its {t}",
    "we want to know of {s} : which {t} is shown ?",
    "the site has a page {s} ; share the {t}",
    "here is {s} ; read the page and answer with {t}",
    "using the web look for {s} , send me the {t}",
)

HELD_OUT_PAGE: tuple[str, ...] = (
    "tell me of {s} , what {t} has the page ?",
    "start at {s} , find there the {t} for us",
    "will you open {s} ? i only need the {t}",
    "someone made a page {s} ; get its {t} please",
)

TRAIN_CHAIN: tuple[tuple[str, str], ...] = (
    ("open {s} , go to the {r} and tell me the {t}", ", then the"),
    ("from {s} click on {r} and report the {t}", "then"),
    ("please visit {s} , next the {r} , then say its {t}", "and the"),
    ("i need you to open {s} , {r} and find the {t}", ","),
    ("your task : page {s} , the {r} , give that {t}", ", the"),
    ("for {s} take the {r} ; what does it say as {t} ?", "and then the"),
    ("could you follow {s} to the {r} for the {t} ?", "to the"),
    ("go to {s} , its {r} and write down only the {t}", ", its"),
    ("the page {s} links a {r} ; name the {t} there", "with a"),
    ("we start at {s} : first {r} , at the end which {t} ?", "and"),
    ("on the site from {s} walk by {r} ; share the {t}", "by"),
    ("here is {s} ; step to the {r} and answer with {t}", ", step to the"),
    ("using the web look for {s} , the {r} , send me {t}", ", after that the"),
)

HELD_OUT_CHAIN: tuple[tuple[str, str], ...] = (
    ("tell me of {s} : its link {r} , what {t} has it ?", ", next"),
    ("start at {s} , walk on to {r} , find there the {t}", ", on to"),
    ("will you open {s} , follow {r} ? i only need the {t}", ", follow"),
    ("someone made page {s} ; click {r} and get its {t} please", ", click"),
)
