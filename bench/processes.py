"""What the processes below the benchmark cost: CPU by what they are there for, and resident memory.

Everything a benchmark starts is a child of its own process: the servers, trucker with its JVM and its workers,
PostgreSQL's tools. All of it is read out of /proc a few times a second, so that a process which begins and ends
in between is counted too, up to the last look at it.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

EVERY = 0.25
_OTHER = "client tools"
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

# Part of a command line -> what the process is there for; the first that is found counts.
_COMMANDS = (
    ("bin/java ", "jvm"),
    ("trucker.capture.process", "capture"),
    ("trucker.engine.spark.worker_daemon", "workers"),
    ("pyspark.daemon", "workers"),
    ("-m trucker", "driver"),
)
_SERVER = (
    ("walsender", "walsender"),
    ("logical replication apply", "apply worker"),
    ("logical replication parallel", "apply worker"),
    ("logical replication tablesync", "apply worker"),
    ("autovacuum worker", "autovacuum"),
)
_BACKGROUND = ("checkpointer", "background writer", "walwriter", "launcher", "io worker", "logger", "archiver")


@dataclass(frozen=True)
class Seen:
    """One process at one moment; `waited` is what its children had used that have ended."""

    pid: int
    parent: int
    started: int
    seconds: float
    waited: float

    @property
    def key(self) -> tuple[int, int]:
        """Tells it from another process that gets its number later."""
        return self.pid, self.started


class CpuProfile:
    """CPU seconds by group of processes while it is entered.

    `servers` names the postmasters by their process ids, `load` the server processes that make the load.
    """

    def __init__(self, servers: Mapping[int, str], load: frozenset[int] = frozenset()) -> None:
        self.seconds: dict[str, float] = {}
        self._servers = servers
        self._load = load
        self._groups: dict[tuple[int, int], str] = {}
        self._first: dict[tuple[int, int], Seen] = {}
        self._last: dict[tuple[int, int], Seen] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._first = self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        running = self._look()
        spent: dict[str, float] = defaultdict(float)
        for key, seen in self._last.items():
            spent[self._groups[key]] += seen.seconds - (self._first[key].seconds if key in self._first else 0.0)
        for group, seconds in self._unseen(running):
            spent[group] += seconds
        self.seconds = {group: seconds for group, seconds in spent.items() if seconds >= 0.005}

    def _watch(self) -> None:
        while not self._stop.wait(EVERY):
            self._look()

    def _look(self) -> dict[tuple[int, int], Seen]:
        running = {seen.key: seen for seen in below(os.getpid())}
        for key, seen in running.items():
            # A server process has no title at first, and a script becomes the program it starts.
            if self._groups.get(key, _OTHER) == _OTHER or self._groups[key].endswith("server"):
                self._groups[key] = self._group(seen)
        self._last |= running
        return running

    def _unseen(self, running: Mapping[tuple[int, int], Seen]) -> Iterator[tuple[str, float]]:
        """What processes used between the last look at them and their end: their parents know the sum."""
        for key, parent in running.items():
            if key not in self._first:
                continue
            ended = [seen for other, seen in self._last.items() if seen.parent == parent.pid and other not in running]
            accounted = sum(seen.seconds + seen.waited for seen in ended)
            rest = parent.waited - self._first[key].waited - accounted
            groups = [self._groups[seen.key] for seen in ended] or [self._short_lived(parent)]
            for group in groups if rest > 0 else ():
                yield group, rest / len(groups)

    def _short_lived(self, parent: Seen) -> str:
        server = self._servers.get(parent.pid)
        return f"{server} backends" if server else _OTHER

    def _group(self, seen: Seen) -> str:
        if seen.pid == os.getpid():
            return "bench"
        title = _title(seen.pid)
        server = self._servers.get(seen.parent)
        if server is not None:
            return f"{server} {'load' if seen.pid in self._load else _server_group(title)}"
        if seen.pid in self._servers:
            return f"{self._servers[seen.pid]} background"
        return next((group for part, group in _COMMANDS if part in title), _OTHER)


def _server_group(title: str) -> str:
    """A server process's work by its title; "server" while it has none yet."""
    _, colon, text = title.partition("postgres: ")
    if not colon:
        return "server"
    named = next((group for part, group in _SERVER if text.startswith(part)), None)
    return named or ("background" if any(part in text for part in _BACKGROUND) else "backends")


class PeakMemory:
    """The most resident memory of a process and all below it while it is entered, in MiB.

    The sum of resident set sizes: a page that several processes share counts once for each of them.
    """

    def __init__(self, root: int, every: float = 0.1) -> None:
        self.mebibytes = 0.0
        self.groups: dict[str, float] = {}
        self._root = root
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            groups = resident(self._root)
            total = sum(groups.values())
            if total > self.mebibytes:
                self.mebibytes, self.groups = total, groups


def resident(root: int) -> dict[str, float]:
    """Resident MiB of a process and all below it, by group; shared pages count once for each process."""
    groups: dict[str, float] = defaultdict(float)
    for seen in below(root):
        sizes, title = _read(seen.pid, "statm").split(), _title(seen.pid)
        if sizes:
            group = next((group for part, group in _COMMANDS if part in title), "other")
            groups[group] += int(sizes[1]) * _PAGE / (1 << 20)
    return dict(groups)


def proportional(root: int) -> float:
    """MiB of a process and all below it, a page shared by n of them counted as an n-th in each."""
    total = 0
    for seen in below(root):
        lines = _read(seen.pid, "smaps_rollup").splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith(b"Pss:"))
    return total / 1024


def cpu_seconds(root: int) -> float:
    """What a process and all below it have used so far, those that have ended and been waited for included."""
    return sum(seen.seconds + seen.waited for seen in below(root))


def below(root: int) -> Iterator[Seen]:
    """A process and all below it."""
    children: dict[int, list[Seen]] = defaultdict(list)
    by_id: dict[int, Seen] = {}
    for entry in os.scandir("/proc"):
        seen = _seen(int(entry.name)) if entry.name.isdigit() else None
        if seen is not None:
            by_id[seen.pid] = seen
            children[seen.parent].append(seen)
    waiting = [by_id[root]] if root in by_id else []
    while waiting:
        seen = waiting.pop()
        yield seen
        waiting += children[seen.pid]


def _seen(pid: int) -> Seen | None:
    """One process by its `stat`, whose fields come after its name, in parentheses, which may hold anything."""
    text = _read(pid, "stat")
    if not text:
        return None
    fields = text.rpartition(b")")[2].split()
    user, system, waited_user, waited_system = (int(field) / _TICK for field in fields[11:15])
    return Seen(pid, int(fields[1]), int(fields[19]), user + system, waited_user + waited_system)


def _title(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def _read(pid: int, name: str) -> bytes:
    """A file of a process; nothing when it is gone. Many times a second, so that it shall not show in what it tells."""
    try:
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(file)
