"""One instance of a handler's class in this process, in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from trucker.config.adapter import HandlerCode
from trucker.handlers import ARGUMENTS, POSITION, RowRefused, defines
from trucker.sinks.python.calls import Call
from trucker.sinks.python.handler_code import class_of, instance_of

SetAside = Callable[[Call, BaseException], None]
"""Called with a call that failed: raises, unless the call is to be passed over."""

FAILURES: Final = (Exception, asyncio.CancelledError, SystemExit)
"""What a handler's code may raise that is its own affair."""

_LONGEST: Final = 200


class RunningHandler:
    """Made once for a truck and process. It is made, called and closed in a thread of its own, whoever asks for it:
    what it holds may belong to one thread, as SQLite's connections do. The thread has an event loop where one of the
    methods is a coroutine."""

    def __init__(self, code: HandlerCode) -> None:
        self._code = code
        self._kind = class_of(code)
        self._thread: CallThread | EventLoop | None = None
        self._object: Any = None
        self.defined = frozenset(name for name in ARGUMENTS if defines(self._kind, name))
        self.is_async = any(inspect.iscoroutinefunction(getattr(self._kind, name)) for name in self.defined)

    @property
    def keeps_position(self) -> bool:
        """Whether it stores its position with its data."""
        return self.defined.issuperset(POSITION)

    def open(self) -> None:
        """Make the instance, if there is none, and open it. Raises what its code raises."""
        if self._object is not None:
            return
        if self._thread is None:
            self._thread = EventLoop() if self.is_async else CallThread()
        made = self._thread.finish(lambda: instance_of(self._code))
        if "open" in self.defined:
            self._thread.finish(made.open)
        self._object = made

    def invoke(self, method: str, *arguments: Any) -> Any:
        """Call a method, and wait for it."""
        assert self._thread is not None
        return self._thread.finish(partial(getattr(self._object, method), *arguments))

    def perform(self, calls: Iterator[Call], parallel: int, set_aside: SetAside) -> None:
        """Make these calls in order; those with keys, of which up to `parallel` run at once, in order per key."""
        assert self._thread is not None
        if self.is_async:
            self._thread.finish(partial(self._concurrently, calls, parallel, set_aside))
        else:
            self._thread.finish(partial(self._plainly, calls, set_aside))

    def close(self) -> None:
        """Close the instance, whatever it raises; the next `open` makes another."""
        if self._thread is None:
            return
        with suppress(*FAILURES):
            if self._object is not None and "close" in self.defined:
                self._thread.finish(self._object.close)
        self._object = None
        self._thread.close()
        self._thread = None

    def reason(self, error: BaseException) -> str:
        """What failed, without the exception's text, which may quote a row (I10); a `RowRefused` says what to show."""
        if isinstance(error, RowRefused) and str(error):
            return str(error).partition("\n")[0][:_LONGEST]
        folder = Path(inspect.getsourcefile(self._kind) or "?").parent if self._has_source else None
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame for frame in frames if folder is not None and Path(frame.filename).parent == folder]
        where = f" in {Path(inside[-1].filename).name}, line {inside[-1].lineno}" if inside else ""
        return f"{type(error).__name__}{where}"

    @property
    def _has_source(self) -> bool:
        try:
            return inspect.getsourcefile(self._kind) is not None
        except TypeError:
            return False

    def _plainly(self, calls: Iterator[Call], set_aside: SetAside) -> None:
        bound = {name: getattr(self._object, name) for name in self.defined}
        for call in calls:
            try:
                bound[call.method](*call.arguments)
            except FAILURES as error:
                set_aside(call, error)

    async def _concurrently(self, calls: Iterator[Call], parallel: int, set_aside: SetAside) -> None:
        lanes = _Lanes(set_aside)
        try:
            for call in calls:
                method = getattr(self._object, call.method)
                if call.key is None or parallel == 1:
                    await lanes.settle()
                    await lanes.run(call, method)
                else:
                    await lanes.add(call, method, parallel)
            await lanes.settle()
        finally:
            await lanes.abandon()


class _Lanes:
    """Calls in progress, one for each key."""

    def __init__(self, set_aside: SetAside) -> None:
        self._set_aside = set_aside
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._failed: list[tuple[Call, BaseException]] = []

    async def run(self, call: Call, method: Callable[..., Any]) -> None:
        """One call by itself."""
        await self._call(call, method)
        self._raise()

    async def add(self, call: Call, method: Callable[..., Any], most: int) -> None:
        """Begin a call once that of its key has ended, and there is room."""
        if (before := self._tasks.pop(call.key, None)) is not None:
            await before
        while len(self._tasks) >= most:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}
        if self._failed:
            await self.settle()
        self._tasks[call.key] = asyncio.create_task(self._call(call, method))

    async def settle(self) -> None:
        """Wait for all calls; those that failed are told of in their order."""
        for task in self._tasks.values():
            await task
        self._tasks.clear()
        self._raise()

    async def abandon(self) -> None:
        """Wait for the calls in progress, whatever comes of them."""
        for task in self._tasks.values():
            await task

    async def _call(self, call: Call, method: Callable[..., Any]) -> None:
        try:
            result = method(*call.arguments)
            if inspect.isawaitable(result):
                await result
        except FAILURES as error:
            self._failed.append((call, error))

    def _raise(self) -> None:
        failed, self._failed = sorted(self._failed, key=lambda each: each[0].number), []
        for call, error in failed:
            self._set_aside(call, error)


class CallThread:
    """A thread that makes calls, one after the other."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "handler")

    def finish(self, call: Callable[[], Any]) -> Any:
        """Make a call there, and wait for it."""
        return self._executor.submit(call).result()

    def close(self) -> None:
        self._executor.shutdown()


class EventLoop:
    """The same, with an event loop: what a handler starts in it goes on between calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="handler", daemon=True)
        self._thread.start()

    def finish(self, call: Callable[[], Any]) -> Any:
        """Make a call there, await what it gives, and wait for that."""
        future = asyncio.run_coroutine_threadsafe(_awaited(call), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what is still running, and end the thread."""
        self.finish(_cancel_others)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _awaited(call: Callable[[], Any]) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) else result


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
