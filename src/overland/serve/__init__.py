"""HTTP over an engine: OpenAI- and Anthropic-compatible routes, metrics, limits, graceful shutdown."""

from overland.serve.app import create_app
from overland.serve.lifecycle import background, run
from overland.serve.settings import ServeSection

__all__ = ["ServeSection", "background", "create_app", "run"]
