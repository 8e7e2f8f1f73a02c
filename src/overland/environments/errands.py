"""What the hard terminal levels are made of: errands with logs, archives, permissions, processes and git repositories.

Each errand is a note that says what is to be done and where the next note is. So there is always one more thing to
read, nothing is done by repeating one command, and what comes next is not known before.
"""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from overland.environments.git_objects import Commit, bare_repository
from overland.environments.task import Step


@dataclass
class Machine:
    """A file tree in the making: what is there, what will be there, with which modes, and who runs."""

    files: dict[str, str | bytes] = field(default_factory=dict)
    expected: dict[str, str | bytes] = field(default_factory=dict)
    """What is new or different at the end."""
    modes: dict[str, int] = field(default_factory=dict)
    expected_modes: dict[str, int] = field(default_factory=dict)
    workers: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def do(self, what: str, command: str) -> None:
        self.steps.append(Step((what, "go on with the notes"), {"cmd": command}))


Errand = Callable[[random.Random, Machine, str, Sequence[str]], str]
"""(rng, machine, name of the errand, five more names) -> what the note says."""


def packed(text: str) -> bytes:
    """A gzip file; stored and without a time, so that it is the same on every machine."""
    return gzip.compress(text.encode(), compresslevel=0, mtime=0)


def archive(members: dict[str, str]) -> bytes:
    """A tar.gz file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, text in members.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(buffer.getvalue(), compresslevel=0, mtime=0)


def log(rng: random.Random, m: Machine, name: str, others: Sequence[str]) -> str:
    """Find the host that a request was sent to, in logs of which some are compressed."""
    request = f"r{rng.randrange(1000, 10_000)}"
    where = rng.randrange(3)
    hosts = others[:4]
    answer = rng.choice(hosts)
    for number in range(3):
        lines = [
            f"{hour:02}:{rng.randrange(60):02} info request r{rng.randrange(10_000, 100_000)} host {rng.choice(hosts)} "
            f"status {rng.choice(['ok', 'ok', 'failed'])}"
            for hour in range(9, 21)
        ]
        if number == where:
            at = rng.randrange(2, 10)
            lines[at] = f"{at + 9:02}:30 error request {request} host {answer} status failed"
        text = "\n".join(lines) + "\n"
        path = f"logs/{name}/app.log" + (f".{number}.gz" if number else "")
        m.files[path] = packed(text) if number else text
    found = f"logs/{name}/app.log" + (f".{where}.gz" if where else "")
    m.do(f"look for the logs of {name}", f"ls logs/{name}")
    m.do(f"find the file with {request}", f"for f in logs/{name}/*; do zcat -f $f | grep -q {request} && echo $f; done")
    m.do(f"read the line of {request}", f"zcat -f {found} | grep {request}")
    m.do(f"write down {answer}", f"echo {answer} > out/{name}")
    m.expected[f"out/{name}"] = f"{answer}\n"
    return f"the logs in logs/{name} say which host answered request {request}; write its name to out/{name}"


def unpack(rng: random.Random, m: Machine, name: str, others: Sequence[str]) -> str:
    """One member out of an archive in an archive."""
    inner = {f"{other}.txt": f"word {rng.choice(others)}\n" for other in others[:4]}
    wanted = f"{rng.choice(others[:4])}.txt"
    index = "".join(f"{path[:-4]} kept\n" if path == wanted else f"{path[:-4]} dropped\n" for path in inner)
    m.files[f"packs/{name}.tar.gz"] = archive({"index": index, **inner})
    m.do(f"look into the archive {name}", f"tar tzf packs/{name}.tar.gz")
    m.do("read its index", f"tar xzOf packs/{name}.tar.gz index")
    m.do(f"take out {wanted}", f"tar xzOf packs/{name}.tar.gz {wanted} > out/{name}")
    m.do("look at it", f"cat out/{name}")
    m.expected[f"out/{name}"] = inner[wanted]
    return f"in packs/{name}.tar.gz the index names one file as kept; put its content into out/{name}, nothing else"


def permit(rng: random.Random, m: Machine, name: str, others: Sequence[str]) -> str:
    """Modes as a policy wants them."""
    paths = [f"vault/{name}/{other}" for other in others[:4]]
    rules = {path: rng.choice([0o600, 0o640, 0o444, 0o755]) for path in paths}
    for path in paths:
        m.files[path] = f"key {rng.choice(others)}\n"
        m.modes[path] = rules[path]
    wrong = rng.sample(paths, 2)
    for path in wrong:
        m.modes[path] = rng.choice([mode for mode in (0o666, 0o700, 0o664) if mode != rules[path]])
        m.expected_modes[path] = rules[path]
    m.files[f"vault/{name}/policy"] = "".join(f"{path.rsplit('/', 1)[1]} {mode:o}\n" for path, mode in rules.items())
    m.do("read the policy", f"cat vault/{name}/policy")
    m.do("compare the modes", f"stat -c '%n %a' vault/{name}/*")
    for path in wrong:
        m.do(f"set the mode of {path}", f"chmod {rules[path]:o} {path}")
    return f"files in vault/{name} whose mode is not what vault/{name}/policy says must get that mode"


def stop(rng: random.Random, m: Machine, name: str, others: Sequence[str]) -> str:
    """End one of several running programs, so that it can write its last words."""
    m.workers.append(name)
    m.files[f"run/{name}.start"] = "running\n"
    m.do("see what runs", "for f in run/*.pid; do kill -0 $(cat $f) && echo $f; done")
    m.do(f"read the number of {name}", f"test -s run/{name}.pid && echo there is one")
    m.do(
        f"end {name} and wait for it",
        f"kill -TERM $(cat run/{name}.pid); n=0; while [ ! -e run/{name}.end ] && [ $n -lt 500 ]; "
        f"do sleep 0.02; n=$((n+1)); done; cat run/{name}.end",
    )
    m.expected[f"run/{name}.end"] = f"{name} ended\n"
    return (
        f"the program {name} runs and left its process number in run/{name}.pid; end it with the signal TERM, so that "
        f"it writes run/{name}.end; the other programs go on"
    )


def history(rng: random.Random, m: Machine, name: str, others: Sequence[str]) -> str:
    """The value that a setting had before somebody changed it."""
    values = rng.sample(range(100, 1000), 7)
    authors, key = others[:3], rng.choice(["limit", "size", "delay"])
    author = rng.choice(authors)
    at = rng.randrange(2, 6)
    commits = []
    for number, value in enumerate(values):
        who = author if number == at else rng.choice([a for a in authors if a != author])
        files = {"settings": f"{key} {value}\nname {others[3]}\n", "readme": f"see {others[4]}\n"}
        commits.append(Commit(f"{rng.choice(['set', 'change', 'adjust'])} {key} ({number})", who, files))
    found, ids = bare_repository(commits)
    m.files |= {f"repos/{name}.git/{path}": content for path, content in found.items()}
    git = f"git --git-dir=repos/{name}.git"
    m.do(f"read the history of {name}", f"{git} log --format='%h %an %s'")
    m.do(f"see what {author} changed", f"{git} show --format=%an {ids[at][:8]}")
    m.do("read the value before", f"{git} show {ids[at - 1][:8]}:settings")
    m.do("write it down", f"echo {values[at - 1]} > out/{name}")
    m.expected[f"out/{name}"] = f"{values[at - 1]}\n"
    return (
        f"in the git repository repos/{name}.git {author} changed {key} once; write the value before that to out/{name}"
    )


ERRANDS: dict[str, Errand] = {"log": log, "unpack": unpack, "permit": permit, "stop": stop, "history": history}

WORKER = """name=$1
trap 'echo "$name ended" > run/$name.end; rm -f run/$name.pid run/$name.start; exit 0' TERM
echo $$ > run/$name.pid
while :; do sleep 5 & wait $!; done
"""
"""A program that runs until it is told to end. It goes on when something else ends its sleep."""
