"""Sandboxes: where a model's commands run. `choose_sandbox()` gives one that withstood every probe on this machine."""

from overland.agent.sandbox.base import Capabilities, ExecResult, Sandbox, SandboxLimits
from overland.agent.sandbox.choose import choose_sandbox, probe_report
from overland.agent.sandbox.probe import ProbeResult
from overland.agent.sandbox.shell import Shell
from overland.agent.sandbox.workdir import Tree, Workdir, read_tree, write_files

__all__ = [
    "Capabilities",
    "ExecResult",
    "ProbeResult",
    "Sandbox",
    "SandboxLimits",
    "Shell",
    "Tree",
    "Workdir",
    "choose_sandbox",
    "probe_report",
    "read_tree",
    "write_files",
]
