"""Small repositories made of the parts: renamed copies with tests, some functions broken, some not yet written.

What is right is never in a repository: hidden cases are arguments only, and what comes back is compared outside of the
sandbox with what the original functions return.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from overland.environments.parts.cases import ARGUMENTS
from overland.environments.parts.faults import FAULTS, Fault

MODULES = tuple(dict.fromkeys(module for module, _ in ARGUMENTS))
NOT_WRITTEN = 'raise NotImplementedError("to be written")'

Case = tuple[str, str, list[Any]]
"""(module, function, arguments), under the original names."""


@cache
def source_of(module: str) -> str:
    """The text of a part."""
    return inspect.getsource(importlib.import_module(f"overland.environments.parts.{module}"))


def functions_of(module: str) -> list[str]:
    return [function for owner, function in ARGUMENTS if owner == module]


def text_of(source: str, function: str) -> str:
    """The text of one function."""
    node = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == function)
    return "\n".join(source.split("\n")[node.lineno - 1 : node.end_lineno])


def body_of(source: str, function: str) -> str:
    """What follows a function's docstring."""
    tree = ast.parse(source)
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    return "\n".join(source.split("\n")[node.body[1].lineno - 1 : node.end_lineno])


def outcome(function: Any, arguments: Sequence[Any]) -> Any:
    """What a call gives, as JSON has it: ["value", v] or ["error", "ValueError"]."""
    try:
        return ["value", json.loads(json.dumps(function(*json.loads(json.dumps(arguments)))))]
    except Exception as error:
        return ["error", type(error).__name__]


def right(case: Case) -> Any:
    """What the original gives."""
    module, function, arguments = case
    return outcome(getattr(importlib.import_module(f"overland.environments.parts.{module}"), function), arguments)


@dataclass(frozen=True)
class Work:
    """One place to repair: the text that stands there and the one that makes it right, under the repository's names."""

    module: str
    function: str
    """The repository's name for it."""
    stands: str
    repaired: str
    missing: bool
    """Whether the function is not written yet (and not wrong)."""


@dataclass(frozen=True)
class Repository:
    """`files` by path; `works` in the order of their modules; `public` and `hidden` are cases."""

    package: str
    names: Mapping[str, Mapping[str, str]]
    """Module -> original function -> the repository's name."""
    files: Mapping[str, str]
    works: tuple[Work, ...]
    public: tuple[Case, ...]
    hidden: tuple[Case, ...]

    @property
    def artefacts(self) -> tuple[str, ...]:
        """The files that a solution consists of."""
        return tuple(f"{self.package}/{module}.py" for module in self.names)

    def call(self, case: Case) -> dict[str, Any]:
        """A case as the driver reads it."""
        module, function, arguments = case
        return {"module": f"{self.package}.{module}", "function": self.names[module][function], "arguments": arguments}


def make_repository(
    rng: random.Random, split: str, package: str, suffixes: Sequence[str], modules: int, broken: int, missing: int
) -> Repository:
    """A repository of `modules` modules, one function broken in each of `broken` and one missing in each of `missing`.

    `suffixes` are names of the split: the functions of a module end in one.
    """
    chosen = sorted(rng.sample(MODULES, modules))
    names = {m: {f: f"{f}_{s}" for f in functions_of(m)} for m, s in zip(chosen, suffixes, strict=False)}
    touched = rng.sample(chosen, broken + missing)
    sources = {module: source_of(module) for module in chosen}
    planted: dict[str, tuple[str, str, str, bool]] = {}
    for at, module in enumerate(touched):
        if at < broken:
            fault = rng.choice([f for f in FAULTS if f.module == module and f.split == split])
            before = text_of(sources[module], fault.function)
            wrong = before.replace(fault.right, fault.wrong)
            planted[module] = (fault.function, *_lines(before, wrong), False)
        else:
            function = rng.choice(functions_of(module))
            planted[module] = (function, body_of(sources[module], function), f"    {NOT_WRITTEN}", True)
    works = []
    for module, (function, good, bad, absent) in planted.items():
        text = text_of(sources[module], function)
        sources[module] = sources[module].replace(text, text.replace(good, bad))
        if sources[module].count(bad) != 1:  # an edit names a text that stands there once
            good, bad = text, text.replace(good, bad)
        works.append(
            Work(module, names[module][function], _renamed(bad, names[module]), _renamed(good, names[module]), absent)
        )
    public, hidden = _cases(rng, chosen, {module: p[0] for module, p in planted.items()}, sources)
    files = {f"{package}/{module}.py": _renamed(sources[module], names[module]) for module in chosen}
    files[f"{package}/__init__.py"] = f'"""{package}: small tools, each in a module of its own."""\n'
    files["README.md"] = _readme(package, chosen, names)
    for module in chosen:
        files[f"tests/test_{module}.py"] = _tests(package, module, names, [c for c in public if c[0] == module])
    files["tests/__init__.py"] = ""
    ordered = tuple(sorted(works, key=lambda work: work.module))
    return Repository(package, names, files, ordered, tuple(public), tuple(hidden))


def _lines(before: str, after: str) -> tuple[str, str]:
    """The lines that differ between two texts of equal length in lines: what stands, and what stood."""
    a, b = before.split("\n"), after.split("\n")
    differ = [at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    return "\n".join(a[differ[0] : differ[-1] + 1]), "\n".join(b[differ[0] : differ[-1] + 1])


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """`text` with a module's functions under new names, where they are called, defined or quoted in docstrings."""
    pattern = "|".join(names)
    return re.sub(
        rf"(?<![\w.\"])({pattern})(?=\()|(?<=`)({pattern})(?=`)|(?<=key=)({pattern})\b", lambda m: names[m[0]], text
    )


def _cases(
    rng: random.Random, modules: Sequence[str], touched: Mapping[str, str], sources: Mapping[str, str]
) -> tuple[list[Case], list[Case]]:
    """Public and hidden cases of every function. Both tell a touched function from the right one."""
    public: list[Case] = []
    hidden: list[Case] = []
    for module in modules:
        space: dict[str, Any] = {}
        exec(compile(sources[module], module, "exec"), space)  # our own text, from this package
        for function in functions_of(module):
            draws: list[Case] = [(module, function, ARGUMENTS[module, function](rng)) for _ in range(40)]
            telling: list[Case] = []
            if touched.get(module) == function:
                telling = [case for case in draws if outcome(space[function], case[2]) != right(case)]
                while len(telling) < 3:
                    case: Case = (module, function, ARGUMENTS[module, function](rng))
                    if outcome(space[function], case[2]) != right(case):
                        telling.append(case)
            others = [case for case in draws if case not in telling]
            public += telling[:1] + others[:2]
            hidden += telling[1:5] + others[2 : 8 if telling else 5]
    return public, hidden


def _tests(package: str, module: str, names: Mapping[str, Mapping[str, str]], cases: Sequence[Case]) -> str:
    """A unittest file in which every public case is a line."""
    lines = [
        "import unittest",
        "",
        f"from {package} import {module}",
        "",
        "",
        f"class {module.title()}(unittest.TestCase):",
    ]
    for function, name in names[module].items():
        lines.append(f"    def test_{name}(self):")
        for case in cases:
            if case[1] != function:
                continue
            call = ", ".join(map(repr, case[2]))
            kind, value = right(case)
            if kind == "value":
                lines.append(f"        self.assertEqual({module}.{name}({call}), {value!r})")
            else:
                lines.append(f"        with self.assertRaises({value}):")
                lines.append(f"            {module}.{name}({call})")
        lines.append("")
    return "\n".join([*lines, "", 'if __name__ == "__main__":', "    unittest.main()", ""])


def _readme(package: str, modules: Sequence[str], names: Mapping[str, Mapping[str, str]]) -> str:
    lines = [f"# {package}", "", "Every function does what its docstring says. Tests: `python3 -m unittest`.", ""]
    lines += [f"- `{package}/{module}.py`: {', '.join(names[module].values())}" for module in modules]
    return "\n".join([*lines, ""])


def checked_faults() -> list[Fault]:
    """Faults whose line does not stand exactly once in its function: none, or the table is wrong."""
    return [f for f in FAULTS if text_of(source_of(f.module), f.function).count(f.right) != 1]
