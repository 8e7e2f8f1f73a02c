"""Generated ids back into channels: an incremental reader of an assistant's XTML turn.

It works on token ids, so that text which merely spells a marker is never taken for one, and it never raises: a turn
that breaks the grammar is read as far as it makes sense, and everything odd is recorded as an error "code: detail".
Text that stands outside every channel goes into the errors, never into another channel.

A call that was broken off keeps its JSON text unterminated: arguments that were not said to the end do not parse,
hence do not run.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import Any

from overland.chat.template import Event, ParsedTurn, TurnParser
from overland.chat.tokenizer import CLOSE, END_OF_MSG, EOS, OPEN, SEP, Tokenizer
from overland.chat.tools import MalformedCall, ToolCall, parse_arguments, strict_json

_TAG = re.compile(r'([^\s"=]+)((?: [^\s"=]+="[^"]*")*)')
_ATTRIBUTE = re.compile(r' ([^\s"=]+)="([^"]*)"')

# Where the reader may stand, and what encloses it.
_PARENT = {
    "think": "between",
    "response": "between",
    "tools": "between",
    "call": "tools",
    "argument": "call",
    "json": "call",
}
_TYPES = ("string", "number", "boolean", "null", "object", "array")


class ChannelParser(TurnParser):
    """Feed it ids in pieces of any size; the joined events and the turn do not depend on the pieces.

    start: where the prompt left off: "think", "response", or "between" (right after OPEN(message)).
    call_prefix: calls get the ids call_prefix + "1", "2", ...
    """

    def __init__(self, tokenizer: Tokenizer, start: str = "think", call_prefix: str = "call_") -> None:
        self._tokenizer = tokenizer
        self._open, self._close = tokenizer.special(OPEN), tokenizer.special(CLOSE)
        self._sep, self._end, self._eos = (tokenizer.special(name) for name in (SEP, END_OF_MSG, EOS))
        self._prefix = call_prefix
        self._where = start  # an element of _PARENT, "between", "closed" (after CLOSE(message)) or "ended"
        self._seen = {start}
        self._may_think = start != "response"
        self._tools_implied = False  # a call stood outside the tools channel, which nothing will close then
        self._tag: tuple[int, bytearray] | None = None  # the marker and the text of a tag being read
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._text: dict[str, list[str]] = {"think": [], "response": []}
        self._stray: list[str] = []
        self._calls: list[_Call] = []
        self._events: list[Event] = []
        self._errors: list[str] = []
        self._complete = False
        self._turn: ParsedTurn | None = None
        self.tail: list[Event] = []

    # --- the two calls of the outside -------------------------------------------------------------------------------

    def feed(self, ids: Sequence[int]) -> list[Event]:
        """Reads more ids; returns what they released, neighbouring text deltas merged."""
        for id_ in ids:
            name = self._tokenizer.special_name(id_)
            if name is None:
                self._ordinary(self._tokenizer.bytes_of((id_,)))
            else:
                self._special(id_, name)
        return self._take_events()

    def finish(self) -> ParsedTurn:
        """The turn as read so far. Calling it again gives the same answer."""
        if self._turn is None:
            self._drop_tag()
            self._leave_all(cut=True)
            self._flush_stray()
            self.tail = self._take_events()
            self._turn = ParsedTurn(
                reasoning="".join(self._text["think"]),
                content="".join(self._text["response"]),
                tool_calls=tuple(
                    ToolCall(f"{self._prefix}{number}", call.name, "".join(call.arguments))
                    for number, call in enumerate(self._calls, start=1)
                ),
                errors=tuple(self._errors),
                complete=self._complete,
            )
        return self._turn

    @property
    def channel(self) -> str:
        """Where text would go now: "think", "response", or "" (markup, a call, nowhere)."""
        return self._where if self._tag is None and self._where in self._text else ""

    # --- tokens -----------------------------------------------------------------------------------------------------

    def _ordinary(self, data: bytes) -> None:
        if self._tag is not None:
            self._tag[1].extend(data)
        else:
            self._write(self._utf8.decode(data))

    def _special(self, id_: int, name: str) -> None:
        self._write(self._utf8.decode(b"", True))  # a marker ends whatever character was under way
        self._utf8.reset()
        if self._where == "ended":
            self._error("after_end", name)
        elif id_ == self._sep:
            self._end_tag()
        elif id_ in (self._open, self._close):
            self._drop_tag()
            self._tag = (id_, bytearray())
        elif id_ in (self._end, self._eos):
            self._drop_tag()
            self._complete = id_ == self._end and self._where == "closed"
            if id_ == self._eos:
                self._error("ended_by_eos", "the turn ended with [EOS] instead of <|end_of_msg|>")
            elif not self._complete:
                self._error("unclosed_message", "<|end_of_msg|> came before the message was closed")
            self._leave_all()
            self._flush_stray()
            self._where = "ended"
        else:
            self._drop_tag()
            self._error("unexpected_special", name)

    def _drop_tag(self) -> None:
        """A tag that was begun and not ended is no tag."""
        if self._tag is not None:
            marker, text = self._tag
            self._tag = None
            self._error("cut_tag", ("close " if marker == self._close else "open ") + text.decode("utf-8", "replace"))

    def _end_tag(self) -> None:
        if self._tag is None:
            self._error("unexpected_separator", f"in {self._where}")
            return
        marker, data = self._tag
        self._tag = None
        text = data.decode("utf-8", "replace")
        if marker == self._close:
            self._close_element(text)
            return
        match = _TAG.fullmatch(text)
        if match is None:
            self._error("bad_tag", text)
            return
        values = {key: _unescape(value) for key, value in _ATTRIBUTE.findall(match[2])}
        self._open_element(match[1], values, text)

    # --- elements ---------------------------------------------------------------------------------------------------

    def _open_element(self, tag: str, values: dict[str, str], text: str) -> None:
        if self._where == "closed":
            self._error("unexpected_element", text)
        elif tag in ("think", "response", "tools"):
            self._leave_all()
            if tag in self._seen:
                self._error("reopened", tag)
            elif tag == "think" and (not self._may_think or "response" in self._seen):
                self._error("misplaced", "think after response")
            elif tag == "tools" and "response" not in self._seen:
                self._error("missing_response", "tools before a response channel")
            elif tag == "response" and "tools" in self._seen:
                self._error("misplaced", "response after tools")
            self._tools_implied = False
            self._enter(tag)
        elif tag == "call":
            if self._where in ("call", "argument", "json"):
                self._leave_to("tools")
            elif self._where != "tools":
                self._leave_all()
                self._error("call_outside_tools", values.get("tool", ""))
                self._tools_implied = True
            self._enter("call")
            self._open_call(values)
        elif tag in ("argument", "json") and self._where in ("call", "argument", "json"):
            self._leave_to("call")
            self._enter(tag)
            self._calls[-1].open_child(tag, values, self._error, self._emit_arguments)
        else:
            self._error("unexpected_element", text)

    def _close_element(self, tag: str) -> None:
        if tag == "message":
            if self._where == "closed":
                self._error("unexpected_close", tag)
                return
            self._leave_all()
            if self._seen.isdisjoint(("response", "tools")):  # before tools it was missed already
                self._error("missing_response", "the message has no response channel")
            self._flush_stray()
            self._where = "closed"
            return
        around = self._where
        while around != tag and around in _PARENT:
            around = _PARENT[around]
        if around != tag or tag not in _PARENT:
            self._error("unexpected_close", tag)
            return
        self._leave_to(tag)
        self._leave(closed=True)

    def _enter(self, element: str) -> None:
        self._flush_stray()
        self._where = element
        self._seen.add(element)

    def _leave_all(self, cut: bool = False) -> None:
        self._leave_to("between", cut)

    def _leave_to(self, element: str, cut: bool = False) -> None:
        """Leaves what is open inside `element` without having seen it closed. cut: generation ended there."""
        self._write(self._utf8.decode(b"", True))
        self._utf8.reset()
        while self._where in _PARENT and self._where != element:
            self._leave(closed=False, cut=cut)

    def _leave(self, closed: bool, cut: bool = False) -> None:
        element = self._where
        self._flush_stray()
        if element in ("argument", "json"):
            self._calls[-1].close_child(closed, self._error, self._emit_arguments)
        elif element == "call":
            self._calls[-1].close(closed, self._emit_arguments)
            self._events.append(("call_end", len(self._calls) - 1))
        # A thought or an answer cut by the length limit is no error; a call that was cut must not pass for a whole one.
        implied = element == "tools" and self._tools_implied
        if not closed and not implied and (not cut or element == "call"):
            detail = self._calls[-1].name if element == "call" else ""
            self._error(f"unclosed_{element}", detail)
        self._where = _PARENT[element]

    def _open_call(self, values: dict[str, str]) -> None:
        number = len(self._calls) + 1
        name = values.get("tool", "")
        if not name:
            self._error("call_without_tool", f"call {number}")
        if values.get("index") != str(number):
            self._error("bad_index", f"call {number} says index {values.get('index')!r}")
        self._calls.append(_Call(name))
        self._events.append(("call_start", number - 1, name))

    # --- text -------------------------------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        """Text goes to the innermost open element; outside of any it is kept as an error."""
        if not text:
            return
        if self._where in self._text:
            self._text[self._where].append(text)
            self._events.append((self._where, text))
        elif self._where in ("argument", "json"):
            self._calls[-1].write(text, self._emit_arguments)
        else:
            self._stray.append(text)

    def _emit_arguments(self, fragment: str) -> None:
        self._calls[-1].arguments.append(fragment)
        self._events.append(("call_args", len(self._calls) - 1, fragment))

    def _flush_stray(self) -> None:
        if self._stray:
            text = "".join(self._stray)
            self._stray = []
            self._error("after_end" if self._where == "ended" else "stray_text", text)

    def _error(self, code: str, detail: str = "") -> None:
        self._errors.append(f"{code}: {detail}" if detail else code)

    def _take_events(self) -> list[Event]:
        merged: list[Event] = []
        for event in self._events:
            last = merged[-1] if merged else None
            if last is not None and last[0] == event[0] and event[0] in ("think", "response"):
                merged[-1] = (event[0], str(last[1]) + str(event[1]))
            elif last is not None and last[0] == event[0] == "call_args" and last[1] == event[1]:
                merged[-1] = ("call_args", int(event[1]), str(last[-1]) + str(event[-1]))
            else:
                merged.append(event)
        self._events = []
        return merged


class _Call:
    """One call being read: turns typed children into JSON text as they come."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arguments: list[str] = []
        self._keys: set[str] = set()
        self._mode = ""  # "" until the first child, then "argument" or "json"
        self._broken = False
        self._type = ""  # of the child being read: one of _TYPES, "json", or "refused"
        self._key = ""
        self._value: list[str] = []

    def open_child(self, tag: str, values: dict[str, str], error: Any, emit: Any) -> None:
        self._value = []
        self._key = values.get("key", "")
        # After a child that was broken off nothing may follow: the open quote would turn later text into structure.
        if self._broken or self._mode == "json" or (self._mode and self._mode != tag):
            self._type = "refused"
            self._broken = True
            return
        self._mode = tag
        if tag == "json":
            self._type = "json"
            return
        if "key" not in values:
            error("argument_without_key", self.name)
        if self._key in self._keys:
            error("duplicate_argument", self._key)
        kind = values.get("type", "")
        if kind not in _TYPES:
            error("bad_type", f"{self._key} has type {kind!r}")
            kind = "string"
        self._type = kind
        emit(("{" if not self._keys else ", ") + json.dumps(self._key, ensure_ascii=False) + ": ")
        if kind == "string":
            emit('"')
        self._keys.add(self._key)

    def write(self, text: str, emit: Any) -> None:
        """Strings and raw JSON pass through at once; any other value waits until it can be judged as a whole."""
        self._value.append(text)
        if self._type == "string":
            emit(json.dumps(text, ensure_ascii=False)[1:-1])
        elif self._type == "json":
            emit(text)

    def close_child(self, closed: bool, error: Any, emit: Any) -> None:
        text = "".join(self._value)
        kind, self._type = self._type, ""
        if kind == "refused":
            error("refused_argument", f"{self._key} {text}".strip())
        elif not closed:
            self._broken = True
            if kind not in ("string", "json"):
                emit('"' + json.dumps(text, ensure_ascii=False)[1:-1])
        elif kind == "string":
            emit('"')
        elif kind == "json":
            try:
                parse_arguments(text)
            except MalformedCall as malformed:
                error(malformed.code, malformed.message)
        elif _is_value(text, kind):
            emit(text.strip())
        else:
            error("bad_value", f"{self._key} is no {kind}: {text}")
            emit(json.dumps(text, ensure_ascii=False))

    def close(self, closed: bool, emit: Any) -> None:
        if closed and not self._broken and self._mode != "json":
            emit("}" if self._keys else "{}")


def _is_value(text: str, kind: str) -> bool:
    try:
        value = strict_json(text)
    except ValueError:
        return False
    if isinstance(value, bool):
        return kind == "boolean"
    kinds = {"number": (int, float), "null": (type(None),), "object": (dict,), "array": (list,)}
    return isinstance(value, kinds.get(kind, ()))


def _unescape(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")
