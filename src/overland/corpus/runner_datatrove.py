"""The same pieces as steps of datatrove, whose executors know Slurm, Hugging Face Jobs, Ray and local processes.

A build is four steps, each with an executor of its own that depends on the one before (docs/corpus.md has the script):

    read (many tasks) -> decide (one) -> finish (many) -> pack (one)

What they hand on lies in the work folder beside the corpus, on storage that every node sees. A step that is run again
does what is missing; `pack` is `build`, and would do all of it alone. datatrove's documents pass through untouched.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from overland.corpus.build import build, decide, finish_pieces, open_build, pieces_of
from overland.corpus.pieces import finish_piece, read_piece
from overland.corpus.place import work_folder
from overland.corpus.runners import Here
from overland.corpus.section import CorpusSection
from overland.errors import OverlandError, UsageError

try:
    from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise UsageError("the datatrove runner needs datatrove; install it with: pip install datatrove") from error

Phase = Literal["read", "decide", "finish", "pack"]


class CorpusStep(PipelineStep):
    """One phase of a build of `section` at `out`; a task does every `world_size`-th piece from `rank` on.

    The recipe's own `scale.runner` is left aside: the executor is the runner. All files are read, also those that
    `max_megabytes` leaves out in the end.
    """

    name = "Overland corpus"
    type = "CORPUS"

    def __init__(self, phase: Phase, section: CorpusSection, out: str | Path) -> None:
        super().__init__()
        self.phase, self.out = phase, Path(out).resolve()
        self.section = section.model_copy(update={"scale": section.scale.model_copy(update={"runner": "here"})})

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Do this task's share. Raises OverlandError where the step before was not run."""
        if self.phase == "pack":
            if rank == 0:
                report = build(self.section, self.out, progress=_silent)
                self.stat_update("documents", value=sum(report.documents.values()))
        else:
            self._share(rank, world_size)
        yield from data or ()

    def _share(self, rank: int, world: int) -> None:
        opened = open_build(self.section, self.out)
        with work_folder(self.out, opened.recipe, opened.sources, shared=True) as work:
            if self.phase == "read":
                for piece in pieces_of(opened, work, Here.workers)[rank::world]:
                    read_piece(piece)
                    self.stat_update("pieces read")
            elif self.phase == "decide":
                if rank == 0:
                    decide(opened, work, Here(), _silent)
            else:
                if not (work / "decided.pickle").exists():
                    raise OverlandError(f"{self.out}: nothing is decided yet; run the step 'decide' first")
                for part in finish_pieces(self.section, decide(opened, work, Here(), _silent), work)[rank::world]:
                    finish_piece(part)
                    self.stat_update("pieces finished")


def corpus_steps(section: CorpusSection, out: str | Path) -> tuple[CorpusStep, CorpusStep, CorpusStep, CorpusStep]:
    """The steps of a build, in order: read, decide, finish, pack."""
    read, decided, finish, pack = (CorpusStep(phase, section, out) for phase in ("read", "decide", "finish", "pack"))
    return read, decided, finish, pack


class _Silent:
    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *why: object) -> None:
        pass

    def advance(self, n: int = 1, **figures: object) -> None:
        """Nothing: datatrove has its own statistics."""


def _silent(*what: object) -> _Silent:
    return _Silent()
