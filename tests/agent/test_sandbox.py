"""The probes themselves, the choice, and what a hostile tree can do to its reader."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from overland.agent.sandbox import (
    Sandbox,
    SandboxLimits,
    Workdir,
    choose,
    choose_sandbox,
    probe_report,
    read_tree,
    seccomp,
    write_files,
)
from overland.agent.sandbox.base import Launch
from overland.agent.sandbox.bwrap import Bwrap
from overland.agent.sandbox.identity import tool
from overland.agent.sandbox.probe import probe
from overland.agent.sandbox.process import Process
from overland.errors import OverlandError, UsageError

from .test_shell import processes_with


def test_the_chosen_backend_withstood_every_probe(sandbox: Sandbox):
    results = probe_report()[sandbox.name]
    assert [result for result in results if not result.held] == []
    assert len(results) == 14


async def test_the_probes_find_an_unprotected_process_out():
    failed = {result.name for result in await probe(Process()) if not result.held}
    assert {"no network", "own root", "no privileges", "scratch space limit"} <= failed


class RootStartedBwrap(Bwrap):
    """What many programs do: bind everything, start as root, pass the environment on."""

    name = "naive"

    def launch(self, argv: Sequence[str], workdir: Path | None, limits: SandboxLimits) -> Launch:
        words = [tool("bwrap"), "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        words += ["--tmpfs", "/mnt", "--chdir", "/mnt", *argv]
        return Launch(tuple(str(word) for word in words), env=dict(os.environ))


@pytest.mark.skipif(os.geteuid() != 0 or tool("bwrap") is None, reason="needs root and bubblewrap")
async def test_the_probes_find_a_bubblewrap_started_by_root_out():
    failed = {result.name for result in await probe(RootStartedBwrap()) if not result.held}
    assert {"started unprivileged", "own root", "no host secrets", "/proc/sys not writable"} <= failed


def test_without_a_backend_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    def missing() -> Sandbox:
        raise OverlandError("bubblewrap is not installed (package bubblewrap)")

    monkeypatch.setattr(choose, "BACKENDS", {"missing": missing})
    monkeypatch.setattr(choose, "_results", {})
    with pytest.raises(UsageError, match=r"missing \(available: .*apt install bubblewrap.*--no-sandbox"):
        choose_sandbox()


async def test_no_sandbox_is_loud_and_works(capsys: pytest.CaptureFixture[str], work: Workdir):
    backend = choose_sandbox(no_sandbox=True)
    assert "WARNING" in capsys.readouterr().err
    assert not backend.capabilities.isolated
    async with await backend.open_shell(work.path) as shell:
        assert (await shell.run("cat notes/a.txt; pwd")).text == f"hello\n{work.path}\n"


async def test_the_seccomp_filter_blocks_what_it_lists(sandbox: Sandbox, work: Workdir):
    if not sandbox.capabilities.seccomp or tool("perl") is None:
        pytest.skip("no filter or no perl here")
    column = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
    numbers = [seccomp.DENIED[name][column] for name in ("keyctl", "io_uring_setup", "unshare", "ptrace", "bpf")]
    async with await sandbox.open_shell(work.path) as shell:
        for number in numbers:
            said = await shell.run(f"perl -e 'syscall({number}, 0, 0, 0, 0, 0) >= 0 or print $!+0'")
            assert said.text == "1", number  # EPERM
        assert (await shell.run("perl -e 'print fork() ? 1 : 2; wait'")).rc == 0


def test_seccomp_has_no_program_for_an_unknown_machine():
    assert seccomp.program("riscv64") is None
    assert len(seccomp.program("x86_64") or b"") % 8 == 0


# --- work directories -----------------------------------------------------------------------------------------------


def test_reading_follows_no_link_and_waits_for_no_pipe(work: Workdir, tmp_path: Path):
    (tmp_path / "secret").write_text("secret")
    (work.path / "link").symlink_to(tmp_path / "secret")
    (work.path / "folder").symlink_to(tmp_path)
    os.mkfifo(work.path / "pipe")
    tree = work.read()
    assert tree.files == {"notes/a.txt": b"hello\n"}
    assert tree.links == {"link": str(tmp_path / "secret"), "folder": str(tmp_path)}
    assert tree.skipped == {"pipe": "not a file"}
    assert tree.folders == ("notes",)


def test_reading_is_bounded(work: Workdir):
    write_files(work.path, {f"f{i}": "x" * 100 for i in range(20)})
    assert set(read_tree(work.path, max_files=5).skipped.values()) == {"too many files"}
    tree = read_tree(work.path, max_bytes=250)
    assert sum(map(len, tree.files.values())) <= 250
    assert "too large" in tree.skipped.values()


def test_a_name_that_is_not_utf8_is_shown_not_raised(work: Workdir):
    (Path(os.fsdecode(os.fsencode(work.path) + b"/\xff\xfe"))).write_text("odd")
    assert read_tree(work.path).files["\\xff\\xfe"] == b"odd"


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ""])
def test_writing_outside_is_refused(work: Workdir, path: str):
    with pytest.raises(UsageError, match="inside the work directory"):
        write_files(work.path, {path: "x"})


def test_writing_does_not_go_through_links(work: Workdir, tmp_path: Path):
    (work.path / "out").symlink_to(tmp_path)
    (work.path / "file").symlink_to(tmp_path / "file")
    for path in ("out/x", "file"):
        with pytest.raises((NotADirectoryError, OSError), match=r"irectory|symbolic"):
            write_files(work.path, {path: "x"})
    assert list(tmp_path.iterdir()) == []


async def test_a_closed_folder_is_removed_all_the_same(sandbox: Sandbox):
    work = Workdir({"a/b": "x"})
    async with await sandbox.open_shell(work.path) as shell:
        await shell.run("mkdir -p d/e/f; echo x >d/e/f/g; chmod 000 d/e a; ln -s / root")
    work.close()
    assert not work.path.exists()


def test_a_very_deep_tree_is_read_and_removed():
    work = Workdir()
    here = os.open(work.path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    assert "too deep" in work.read().skipped.values()
    work.close()
    assert not work.path.exists()


def test_a_killed_run_leaves_no_process(sandbox: Sandbox, tmp_path: Path):
    script = tmp_path / "run.py"
    word = f"84.{os.getpid()}"
    script.write_text(
        "import asyncio\n"
        "from overland.agent.sandbox import Workdir\n"
        f"from overland.agent.sandbox.{sandbox.name} import {type(sandbox).__name__}\n"
        "async def main():\n"
        "    with Workdir() as work:\n"
        f"        shell = await {type(sandbox).__name__}().open_shell(work.path)\n"
        f"        await shell.run('echo up >up; setsid sleep {word} & sleep {word} & echo')\n"
        "        print('ready', work.path, flush=True)\n"
        f"        await shell.run('sleep {word}', timeout=60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd="/") as run:
        assert run.stdout is not None
        left = Path(run.stdout.readline().split()[1])
        assert processes_with(word)
        run.kill()
        run.wait()
        for _ in range(400):
            if not processes_with(word):
                break
            os.sched_yield()
            __import__("time").sleep(0.005)
    assert processes_with(word) == []
    with Workdir(base=left.parent) as work:  # the next run tidies up
        from overland.agent.sandbox.workdir import _reaped, reap

        _reaped.discard(left.parent)
        reap(left.parent)
        assert not left.exists()
        assert work.path.exists()
