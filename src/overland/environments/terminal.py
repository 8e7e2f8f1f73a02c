"""Terminal tasks: read, count, move, follow and copy in a small file tree, with the machine's shell.

A file holds one line: "word zumi", or "next kato/list", which points on. Chains never loop; how long one is cannot be
seen from the prompt. Level L is solved by L + 1 commands; levels 4 and 5 are in terminal_hard.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

from overland.environments import terminal_hard
from overland.environments.files_world import FilesWorld
from overland.environments.names import draw_names
from overland.environments.prompts import ask
from overland.environments.task import Step, Task
from overland.environments.taskset import Taskset

FILES = ("note", "list", "log", "plan", "mail", "memo", "draft", "page")


@dataclass(frozen=True)
class TerminalTask(Task):
    """`files` before and `expected` after, by path."""

    files: dict[str, str] = field(kw_only=True)
    expected: dict[str, str] = field(kw_only=True)

    def world(self) -> FilesWorld:
        return FilesWorld(self.files, self.expected, frozenset(step.args["cmd"] for step in self.steps))


class Terminal(Taskset):
    """Tool `sh`; see the module."""

    name = "terminal"
    runs_commands: ClassVar[bool] = True
    kinds: ClassVar[dict[int, tuple[str, ...]]] = {
        0: ("read", "count", "move"),
        1: ("follow", "copy"),
        2: ("follow", "copy"),
        3: ("follow", "copy"),
        **terminal_hard.KINDS,
    }

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> Task:
        if level >= 4:
            return terminal_hard.build(rng, split, level, seed, kind)
        count = rng.randint(6, 10)
        names = draw_names(rng, split, 2 * count)
        paths = [f"{folder}/{rng.choice(FILES)}" for folder in names[:count]]
        words = names[count:]
        chain = paths[: {"follow": level + 1, "copy": level}.get(kind, 1)]
        place, taken = rng.choice(paths[len(chain) :]).split("/")
        target = f"{place}/{rng.choice([file for file in FILES if file != taken])}"
        files = {
            path: f"{text}\n"
            for path, text in zip(paths, self._lines(rng, kind, paths, words, len(chain)), strict=True)
        }
        start, end = chain[0], chain[-1]
        answer, expected = words[len(chain) - 1], files
        if kind == "count":
            answer = str(files[start].count("\n"))
        elif kind in ("move", "copy"):
            answer = "done"
            expected = {path: text for path, text in files.items() if kind == "copy" or path != start}
            expected[target] = files[end]

        path = {
            "read": ("read", "word"),
            "count": ("count", "lines"),
            "move": ("move", target),
            "follow": ("follow", "word"),
            "copy": ("follow", "copy", target),
        }[kind]
        disk = list(files.items())
        rng.shuffle(disk)  # the order on disk must not tell which file comes first
        prompt = ask(rng, split, f"file {start}", ("file", *path))
        return TerminalTask(
            self.name, kind, split, level, seed, prompt, answer,
            _oracle(kind, chain, path, target), outcome="state" if kind in ("move", "copy") else "answer",
            closing={"count": "lines", "move": "move", "copy": "copy"}.get(kind, "word"),
            files=dict(disk), expected=expected,
        )  # fmt: skip

    @staticmethod
    def _lines(rng: random.Random, kind: str, paths: list[str], words: list[str], chain: int) -> list[str]:
        """The text of each file: the chain first, then others which may point anywhere further on."""
        if kind == "count":
            return ["\n".join(rng.sample(words, min(rng.randint(2, 9), len(words)))) for _ in paths]
        lines = [f"next {path}" for path in paths[1:chain]] + [f"word {words[chain - 1]}"]
        for index in range(chain, len(paths)):
            later = paths[index + 1 :]
            point = later and kind != "read" and rng.random() < 0.5
            lines.append(f"next {rng.choice(later)}" if point else f"word {words[index]}")
        return lines


def _oracle(kind: str, chain: list[str], path: tuple[str, ...], target: str) -> tuple[Step, ...]:
    start, end = chain[0], chain[-1]
    only = {"read": f"cat {start}", "count": f"wc -l < {start}", "move": f"mv {start} {target}"}
    if kind in only:
        return (Step((f"file {start}", "file", *path), {"cmd": only[kind]}),)
    steps = [Step((f"file {start}", "file", *path), {"cmd": f"cat {start}"})]
    steps += [Step((f"next {file}", *path), {"cmd": f"cat {file}"}) for file in chain[1:]]
    if kind == "copy":
        steps.append(Step((f"copy {end}", "copy", target), {"cmd": f"cp {end} {target}"}))
    return tuple(steps)
