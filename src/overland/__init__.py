"""Overland: from raw text to a served, tool-using agent.

The names below load their room when they are first used, so that `import overland` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "load_model": "overland.model",
    "load_tokenizer": "overland.chat",
    "Engine": "overland.engine",
    "LocalPolicy": "overland.agent",
    "EndpointPolicy": "overland.agent",
    "load_environment": "overland.environments",
}

__all__ = ["EndpointPolicy", "Engine", "LocalPolicy", "__version__", "load_environment", "load_model", "load_tokenizer"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'overland' has no attribute {name!r}")
