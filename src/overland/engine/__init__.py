"""Token-in, token-out generation: continuous batching, prefix reuse, budgets, scoring."""

from overland.engine.async_engine import AsyncEngine, Stream
from overland.engine.constraint import Constraint
from overland.engine.engine import Emitted, Engine
from overland.engine.images import Picture
from overland.engine.request import Budget, Generation, Sampling

__all__ = ["AsyncEngine", "Budget", "Constraint", "Emitted", "Engine", "Generation", "Picture", "Sampling", "Stream"]
