"""Monitors: what an episode did that a reward should not be trusted for. They look; what follows is the recipe's."""

from overland.rl.monitors.look import MONITORS, Finding, findings, hack_flags
from overland.rl.monitors.story import Act, Story, read_story, story_of

__all__ = ["MONITORS", "Act", "Finding", "Story", "findings", "hack_flags", "read_story", "story_of"]
