"""Pages and reports: what a run stored, made readable. Computes nothing that a run did not store."""

from overland.studio.report import write_report

__all__ = ["write_report"]
