"""A model as one GGUF file, for llama.cpp and what is built on it."""

from overland.model.gguf.export import export_gguf
from overland.model.gguf.layouts import LAYOUTS, layout_of

__all__ = ["LAYOUTS", "export_gguf", "layout_of"]
