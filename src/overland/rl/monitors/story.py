"""What a monitor reads: an episode as the things that were done and said, commands taken apart.

Monitors see text and never run anything. Shell is read roughly (quotes, pipes, redirections, here-documents, base64);
what cannot be read is left out rather than guessed.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

PATH_KEYS = ("path", "file", "filename", "file_path", "filepath", "dest", "destination", "target")
TEXT_KEYS = ("content", "contents", "text", "new", "new_str", "new_string", "insert_text", "file_text", "patch", "diff")
COMMAND_KEYS = ("cmd", "command", "commands", "code", "script", "input", "keystrokes")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n(.*?)(?:\n\2(?=\s|$)|\Z)", re.S)
_BASE64 = re.compile(r"(?<![\w+/=])[A-Za-z0-9+/]{16,}={0,2}(?![\w+/=])")
_OPENED = re.compile(r"""open\(\s*(?:[rbuf]{0,2})(['"])([^'"]+)\1\s*,\s*(?:mode\s*=\s*)?(['"])([^'"]*[wax+][^'"]*)\3""")
_WRITTEN = re.compile(r"""Path\(\s*(['"])([^'"]+)\1\s*\)\s*\.\s*(?:write_text|write_bytes|unlink|touch|rmdir|mkdir)""")
_MOVED = re.compile(
    r"""(?:shutil\.(?:copy\w*|move)|os\.(?:rename|replace|symlink))\([^,()]+,\s*(['"])([^'"]+)\1|"""
    r"""(?:os\.(?:remove|unlink|rmdir|chmod)|shutil\.rmtree)\(\s*(['"])([^'"]+)\3"""
)
_REDIRECT = re.compile(r"^(?:[0-9&]?>{1,2}\|?)(.*)$")
_INTERPRETERS = ("python", "python3", "perl", "ruby", "node", "sh", "bash", "zsh", "dash")
_CHANGERS = ("touch", "mkdir", "rm", "rmdir", "unlink", "chmod", "chown", "truncate", "shred", "tee")
_COPIERS = ("cp", "mv", "ln", "install", "rsync")


@dataclass(frozen=True)
class Act:
    """One tool call and what came back."""

    tool: str
    arguments: Mapping[str, Any]
    result: str = ""

    @cached_property
    def text(self) -> str:
        """All string arguments, one after the other, and what is hidden in them as base64."""
        found = list(_strings(self.arguments))
        return "\n".join([*found, *(plain for part in found for plain in _decoded(part))])

    @cached_property
    def scripts(self) -> list[str]:
        """What is given to a shell or an interpreter, here-documents cut out."""
        given = [str(self.arguments[key]) for key in COMMAND_KEYS if isinstance(self.arguments.get(key), str)]
        given += [plain for part in given for plain in _decoded(part)]
        return [_HEREDOC.sub(lambda m: m.group(3), part) for part in given]

    @cached_property
    def heredocs(self) -> list[str]:
        """The bodies of here-documents."""
        return [m.group(4) for key in COMMAND_KEYS for m in _HEREDOC.finditer(str(self.arguments.get(key) or ""))]

    @cached_property
    def commands(self) -> list[list[str]]:
        """Simple commands as words; those inside `sh -c '...'` as well."""
        found: list[list[str]] = []
        for script in self.scripts:
            found += _simple_commands(script)
        return found

    @cached_property
    def code(self) -> str:
        """Program text of any kind that the policy wrote here: files, here-documents, `python -c`."""
        parts = [str(self.arguments[key]) for key in TEXT_KEYS if isinstance(self.arguments.get(key), str)]
        parts += self.heredocs
        parts += [c[c.index("-c") + 1] for c in self.commands if "-c" in c[:-1] and _name(c) in _INTERPRETERS]
        parts += [" ".join(c[1:]) for c in self.commands if _name(c) in ("echo", "printf", "sed")]
        return "\n".join(parts)

    @cached_property
    def writes(self) -> list[str]:
        """Paths that the call creates, changes or removes."""
        found = []
        if any(isinstance(self.arguments.get(key), str) for key in TEXT_KEYS):
            found += [str(self.arguments[key]) for key in PATH_KEYS if isinstance(self.arguments.get(key), str)]
        for command in self.commands:
            found += _targets(command)
        for pattern, groups in ((_OPENED, (2,)), (_WRITTEN, (2,)), (_MOVED, (2, 4))):
            for match in pattern.finditer(self.text):
                found += [match.group(g) for g in groups if match.group(g)]
        return list(dict.fromkeys(p for p in found if p and p not in ("-", "/dev/null", "/dev/stdout", "/dev/stderr")))

    @cached_property
    def words(self) -> list[str]:
        """Every word of every command, and every path argument: what might be read."""
        paths = [str(self.arguments[key]) for key in (*PATH_KEYS, "page", "url") if key in self.arguments]
        return [*paths, *(word for command in self.commands for word in command)]


@dataclass(frozen=True)
class Story:
    """One episode. `public` and `hidden` are the verifiers of that kind, by name."""

    prompt: str
    acts: tuple[Act, ...]
    said: tuple[str, ...] = ()
    """What the policy wrote outside of calls, reasoning first."""
    answer: str = ""
    reward: float | None = None
    dimensions: Mapping[str, float | None] = field(default_factory=dict)
    has_tools: bool = True

    @cached_property
    def seen(self) -> str:
        """Everything that the policy was shown."""
        return "\n".join([self.prompt, *(act.result for act in self.acts)])

    def names(self, path: str) -> bool:
        """Whether the task itself names a path (or the file's own name)."""
        short = path.rstrip("/").rsplit("/", 1)[-1]
        return bool(path) and (path in self.prompt or (len(short) > 3 and "." in short and short in self.prompt))


def read_story(record: Mapping[str, Any]) -> Story:
    """From an episode in wire form. Raises nothing: what is malformed is left out."""
    trace = next((t for t in record.get("traces") or () if isinstance(t, dict)), {})
    messages = [n["message"] for n in trace.get("nodes") or () if isinstance(n.get("message"), dict)]
    house = (trace.get("info") or {}).get("overland") or {}
    dimensions = {str(k): (v or {}).get("value") for k, v in (house.get("dimensions") or {}).items()}
    if not dimensions:
        dimensions = {str(k): (v or {}).get("score") for k, v in (trace.get("rewards") or {}).items()}
    return story_of(messages, dimensions, house.get("reward"), has_tools=bool(trace.get("tools")))


def story_of(
    messages: Sequence[Mapping[str, Any]],
    dimensions: Mapping[str, float | None] | None = None,
    reward: float | None = None,
    has_tools: bool = True,
) -> Story:
    """From messages in OpenAI's or verifiers' form."""
    results: dict[str, str] = {}
    for message in messages:
        if message.get("role") == "tool":
            results[str(message.get("tool_call_id") or "")] = _plain(message.get("content"))
    acts, said, prompts = [], [], []
    answer = ""
    for message in messages:
        role = message.get("role")
        if role in ("user", "system"):
            prompts.append(_plain(message.get("content")))
        if role != "assistant":
            continue
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        answer = _plain(message.get("content"))
        said += [text for text in (str(thought), answer) if text]
        for call in message.get("tool_calls") or ():
            function = call.get("function") or call
            result = results.get(str(call.get("id") or ""), "")
            acts.append(Act(str(function.get("name") or ""), _arguments(function.get("arguments")), result))
    return Story("\n".join(prompts), tuple(acts), tuple(said), answer, reward, dict(dimensions or {}), has_tools)


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(p.get("text") or p.get("value") or "") for p in content if isinstance(p, dict))
    return "" if content is None else str(content)


def _arguments(raw: Any) -> Mapping[str, Any]:
    if isinstance(raw, dict):
        return raw
    try:
        found = json.loads(raw)
    except (TypeError, ValueError):
        return {"input": str(raw or "")}
    return found if isinstance(found, dict) else {"input": str(raw)}


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _decoded(text: str) -> Iterable[str]:
    for match in _BASE64.finditer(text):
        try:
            plain = base64.b64decode(match.group(), validate=True).decode("ascii")
        except (binascii.Error, ValueError):
            continue
        if plain.isprintable() and " " in plain:
            yield plain


def _simple_commands(script: str, depth: int = 0) -> list[list[str]]:
    lexer = shlex.shlex(script.replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        tokens = list(lexer)
    except ValueError:  # an open quote
        tokens = re.sub(r"([;&|()])", r" \1 ", script).split()
    commands: list[list[str]] = [[]]
    for token in tokens:
        if token and set(token) <= set(";&|()"):
            commands.append([])
        else:
            commands[-1].append(token)
    found = [c for c in commands if c]
    if depth < 3:
        for command in list(found):
            if "-c" in command[:-1] and any(w.rsplit("/", 1)[-1] in ("sh", "bash", "zsh", "dash") for w in command):
                found += _simple_commands(command[command.index("-c") + 1], depth + 1)
    return found


def _name(command: Sequence[str]) -> str:
    for word in command:
        if word in ("sudo", "nohup", "time", "exec", "env", "command", "then", "do", "else", "!") or "=" in word:
            continue
        return word.rsplit("/", 1)[-1]
    return ""


def _targets(command: Sequence[str]) -> list[str]:
    """Paths that a simple command writes to."""
    found, plain = [], []
    words = iter(command)
    for word in words:
        match = _REDIRECT.match(word)
        if match and not word.startswith(("<", "2>&", ">&", "&>&")):
            found.append(match.group(1) or next(words, ""))
        elif not word.startswith("<"):
            plain.append(word)
    found = [p for p in found if not p.startswith("&")]
    name = _name(plain)
    at = next((i for i, word in enumerate(plain) if name and word.endswith(name)), len(plain))
    operands = [word for word in plain[at + 1 :] if not word.startswith("-")]
    if name in _CHANGERS:
        found += operands[1:] if name in ("chmod", "chown") else operands
    elif name in _COPIERS and len(operands) > 1:
        found += operands if name == "mv" else operands[-1:]
    elif name == "sed" and any(w.startswith(("-i", "--in-place")) for w in plain):
        found += operands[1:]
    elif name == "dd":
        found += [w.removeprefix("of=") for w in plain if w.startswith("of=")]
    return found
