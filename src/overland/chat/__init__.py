"""Conversations as data, chat templates, tool declarations and tokenizers. Never calls a model."""

from overland.chat.effort import EFFORTS, normalise_effort
from overland.chat.images import ImagePart, Part
from overland.chat.messages import Message, Role
from overland.chat.parser import ChannelParser
from overland.chat.segments import Encoded, Segment, encode_segments
from overland.chat.template import Event, Fork, ParsedTurn, Template, TurnParser
from overland.chat.tokenizer import SPECIAL_TOKENS, Tokenizer, build_tokenizer, describe_tokens, load_tokenizer
from overland.chat.tools import MalformedCall, ToolCall, ToolSpec, check_call
from overland.chat.xtml import XTML

__all__ = [
    "EFFORTS",
    "SPECIAL_TOKENS",
    "XTML",
    "ChannelParser",
    "Encoded",
    "Event",
    "Fork",
    "ImagePart",
    "MalformedCall",
    "Message",
    "ParsedTurn",
    "Part",
    "Role",
    "Segment",
    "Template",
    "Tokenizer",
    "ToolCall",
    "ToolSpec",
    "TurnParser",
    "build_tokenizer",
    "check_call",
    "describe_tokens",
    "encode_segments",
    "load_tokenizer",
    "normalise_effort",
]
