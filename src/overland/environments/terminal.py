"""Terminal tasks: read, count, move, follow and copy in a small file tree, with the machine's shell.

A file holds one line: "word mira", or "next box/tolan.txt", which points on. Chains never loop; how long one is cannot
be seen from the prompt. Level L is solved by L + 1 commands.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

from overland.environments.files_world import FilesWorld
from overland.environments.names import draw_names
from overland.environments.prompts_terminal import HELD_OUT, TRAIN
from overland.environments.task import Step, Task
from overland.environments.taskset import Taskset

FOLDERS = ("notes", "box", "desk", "bag", "shelf", "bin", "tray", "hall", "yard", "shop", "farm", "dock")


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
    kinds: ClassVar[dict[int, tuple[str, ...]]] = {
        0: ("read", "count", "move"),
        1: ("follow", "copy"),
        2: ("follow", "copy"),
        3: ("follow", "copy"),
    }

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> TerminalTask:
        count = rng.randint(6, 10)
        names = draw_names(rng, split, 2 * count + 1)
        folders = rng.sample(FOLDERS, rng.randint(2, 3))
        paths = [f"{rng.choice(folders)}/{name}.txt" for name in names[:count]]
        words = names[count:-1]
        used = sorted({path.split("/")[0] for path in paths})
        target = f"{rng.choice(used)}/{names[-1]}.txt"

        chain = paths[: {"follow": level + 1, "copy": level}.get(kind, 1)]
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

        families = (TRAIN if split == "train" else HELD_OUT)[kind]
        disk = list(files.items())
        rng.shuffle(disk)  # the order on disk must not tell which file comes first
        prompt = rng.choice(families).format(s=start, d=target)
        return TerminalTask(
            self.name, kind, split, level, seed, prompt, answer,
            _oracle(kind, chain, target), outcome="state" if kind in ("move", "copy") else "answer",
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


def _oracle(kind: str, chain: list[str], target: str) -> tuple[Step, ...]:
    start = chain[0]
    if kind == "read":
        return (Step((f"read {start}", "word"), {"cmd": f"cat {start}"}),)
    if kind == "count":
        return (Step((f"count {start}", "lines"), {"cmd": f"wc -l < {start}"}),)
    if kind == "move":
        return (Step((f"move {start}", f"to {target}"), {"cmd": f"mv {start} {target}"}),)
    goal = "word" if kind == "follow" else f"copy {target}"
    steps = [
        Step((f"{'next' if index else 'follow'} {path}", goal), {"cmd": f"cat {path}"})
        for index, path in enumerate(chain)
    ]
    if kind == "copy":
        steps.append(Step((f"copy {chain[-1]}", f"to {target}"), {"cmd": f"cp {chain[-1]} {target}"}))
    return tuple(steps)
