"""When the functions by which work leaves a hop are replaced: from when a node opens until the last one is closed."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial, update_wrapper
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from quiesce.mesh.routes import children, events, queues, threads, timers
from quiesce.resources.channel import Channel
from quiesce.resources.lane import Lane
from quiesce.resources.reading import BatchReader, Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.backends import Backend

__all__: list[str] = []

_MISSING = object()


class Replaced:
    """An attribute that has another value until it is given back."""

    __slots__ = ("_before", "_name", "_new", "_owner")

    def __init__(self, owner: Any, name: str, make: Callable[..., Any], *more: Any) -> None:
        self._owner, self._name = owner, name
        self._before = vars(owner).get(name, _MISSING)
        original = getattr(owner, name)
        self._new = update_wrapper(make(original, *more), original)
        setattr(owner, name, self._new)

    def undo(self) -> None:
        """Give it back; where other code has replaced it since, that stays, and calls ours."""
        if vars(self._owner).get(self._name) is not self._new:
            return
        if self._before is _MISSING:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._before)


def _everywhere() -> list[Replaced]:
    made = [
        Replaced(ThreadPoolExecutor, "submit", threads.by_executor),
        Replaced(ProcessPoolExecutor, "submit", threads.by_process_executor),
        Replaced(threading.Thread, "start", threads.by_thread),
        Replaced(subprocess.Popen, "__init__", children.by_popen),
        Replaced(BaseProcess, "start", children.by_process),
        Replaced(asyncio.Queue, "put_nowait", queues.by_put),
        Replaced(asyncio.Queue, "get_nowait", queues.by_get_nowait),
        Replaced(asyncio.Queue, "get", queues.by_get),
        Replaced(asyncio.Queue, "task_done", queues.by_done),
        Replaced(queue.Queue, "put", queues.by_put),
        Replaced(queue.Queue, "get", queues.by_thread_get),
        Replaced(queue.Queue, "task_done", queues.by_done),
        Replaced(MemoryObjectSendStream, "send_nowait", queues.by_put),
        Replaced(MemoryObjectSendStream, "send", queues.by_send),
        Replaced(MemoryObjectReceiveStream, "receive_nowait", queues.by_get_nowait),
        Replaced(MemoryObjectReceiveStream, "receive", queues.by_get),
        Replaced(Channel, "send", queues.by_send),
        Replaced(Channel, "send_nowait", queues.by_put),
        Replaced(Lane, "receive", queues.by_get),
        Replaced(Lane, "batch", partial(queues.by_get, gives_list=True)),
        Replaced(Reader, "__anext__", queues.by_get),
        Replaced(BatchReader, "__anext__", partial(queues.by_get, gives_list=True)),
        Replaced(asyncio.Event, "set", events.by_set),
        Replaced(asyncio.Event, "wait", events.by_wait),
        Replaced(asyncio.Condition, "notify", events.by_set),
        Replaced(asyncio.Condition, "wait", events.by_wait),
        Replaced(threading.Event, "set", events.by_set),
        Replaced(threading.Event, "wait", events.by_thread_wait),
        Replaced(threading.Condition, "notify", events.by_set),
        Replaced(threading.Condition, "wait", events.by_thread_wait),
    ]
    if sys.version_info < (3, 12):
        made += [
            Replaced(module, "wait_for", queues.by_wait_for) for module in (asyncio.tasks, asyncio)
        ]
    return made


def _in_loop(loop: Any) -> list[Replaced]:
    made = [Replaced(loop, "call_at", timers.by_time, loop)]
    if type(loop).call_later is not asyncio.BaseEventLoop.call_later:
        made.append(Replaced(loop, "call_later", timers.by_time, loop))
    if not isinstance(loop, asyncio.BaseEventLoop):  # which starts them by `subprocess.Popen`
        made += [
            Replaced(loop, name, children.by_loop)
            for name in ("subprocess_exec", "subprocess_shell")
        ]
    return made


_installed: dict[object, tuple[int, list[Replaced]]] = {}


def install(backend: Backend) -> Callable[[], None]:
    """Follow what leaves hops, once more; returns the function that ends it."""
    loop: Any = backend.loop
    keys = (None, loop) if backend.name == "asyncio" else (None,)
    for key in keys:
        users, made = _installed.get(key) or (0, _everywhere() if key is None else _in_loop(key))
        _installed[key] = (users + 1, made)

    def release() -> None:
        for key in keys:
            users, made = _installed.pop(key)
            if users > 1:
                _installed[key] = (users - 1, made)
            else:
                for one in reversed(made):
                    one.undo()

    return release
