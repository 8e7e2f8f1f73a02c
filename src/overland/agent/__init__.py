"""The agent room: policies, the loop, tools, and the sandbox that their commands run in."""

from typing import TYPE_CHECKING, Any

from overland.agent.loop import CallRecord, Limits, Trajectory, run_loop
from overland.agent.policy import ContextFull, Policy
from overland.agent.tool import Tool, ToolResult
from overland.agent.turn import Turn, Usage

if TYPE_CHECKING:
    from overland.agent.clients import ClientPolicy
    from overland.agent.endpoint import EndpointPolicy
    from overland.agent.local import LocalPolicy

__all__ = [
    "CallRecord",
    "ClientPolicy",
    "ContextFull",
    "EndpointPolicy",
    "Limits",
    "LocalPolicy",
    "Policy",
    "Tool",
    "ToolResult",
    "Trajectory",
    "Turn",
    "Usage",
    "run_loop",
]


def __getattr__(name: str) -> Any:
    """LocalPolicy brings torch and EndpointPolicy httpx: they load where they are used."""
    if name == "LocalPolicy":
        from overland.agent.local import LocalPolicy

        return LocalPolicy
    if name == "EndpointPolicy":
        from overland.agent.endpoint import EndpointPolicy

        return EndpointPolicy
    if name == "ClientPolicy":
        from overland.agent.clients import ClientPolicy

        return ClientPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
