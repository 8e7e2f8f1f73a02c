"""Words that people put before what they ask. A model that has met many of them looks for the task behind them.

Only training prompts get them, and none is a word that a held-out family is made of.
"""

from __future__ import annotations

import random

# fmt: off
FILLERS = (
    "well", "then", "okay", "right", "listen", "hey", "morning", "evening", "quick", "small", "big", "red", "blue",
    "green", "old", "new", "long", "short", "question", "thing", "idea", "reason", "story", "book", "cup", "tea",
    "window", "door", "street", "stone", "cloud", "rain", "sun", "moon", "tree", "leaf", "bird", "horse",
    "dog", "cat", "fish", "bread", "apple", "salt", "chair", "lamp", "clock", "song", "music", "brush", "chapter",
    "maybe", "perhaps", "surely", "just", "still", "also", "only", "never", "always", "often", "before", "after",
    "again", "because", "while", "where", "there", "here", "much", "many", "few", "less", "first", "second",
    "third", "early", "soon", "cold", "warm", "dry", "wet", "clean", "dark", "light", "quiet", "loud", "hard",
    "soft", "strong", "weak", "full", "empty", "open", "closed", "happy", "sorry", "glad", "busy", "free", "rich",
    "poor", "young", "round", "square", "flat", "deep", "high", "low", "near", "far", "left", "north", "south",
    "good", "great", "nice", "kind", "brave", "calm", "clever", "curious", "honest", "patient", "gentle",
)
# fmt: on


def with_fillers(rng: random.Random, split: str, prompt: str) -> str:
    """Every second training prompt behind one to four of these words; held-out prompts as they are."""
    count = rng.choice((0, 0, 0, 0, 1, 2, 3, 4))
    words = rng.sample(FILLERS, count)
    return f"{' '.join(words)} , {prompt}" if split == "train" and words else prompt
