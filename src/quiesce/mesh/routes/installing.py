"""Puts the replacements in place, from when the first node opens until the last node is closed."""

from __future__ import annotations

import asyncio
import os
import queue
import sched
import subprocess
import sys
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import Pool, _PoolCache  # type: ignore[attr-defined]  # the table of a pool's results
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from quiesce.channels.channel import Channel
from quiesce.channels.item_queue import Lane
from quiesce.channels.read_loops import BatchReader, Reader
from quiesce.core.patches import Patch
from quiesce.mesh.clients.client_hooks import Hooks
from quiesce.mesh.routes import (
    call_futures,
    child_processes,
    events,
    executors,
    handovers,
    other_loops,
    process_pools,
    queues,
    simple_queue,
    timers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.backends import Backend

__all__: list[str] = []

_patch = partial(Patch, bare=True)


def _everywhere() -> list[Patch]:
    made = [
        _patch(ThreadPoolExecutor, "submit", executors.by_executor),
        _patch(ProcessPoolExecutor, "submit", executors.by_process_executor),
        _patch(Future, "add_done_callback", executors.by_callback),
        _patch(asyncio.futures, "_chain_future", call_futures.by_chain),
        _patch(threading.Thread, "start", executors.by_thread),
        _patch(threading.Timer, "cancel", executors.by_timer_cancel),
        *(_patch(Pool, name, process_pools.by_call) for name in process_pools.CALLS),
        _patch(Pool, "terminate", process_pools.by_terminate),
        _patch(_PoolCache, "__setitem__", process_pools.by_keep),
        _patch(_PoolCache, "__delitem__", process_pools.by_forget),
        _patch(subprocess.Popen, "__init__", child_processes.by_popen),
        _patch(BaseProcess, "start", child_processes.by_process),
        *(
            _patch(os, name, child_processes.by_fork)
            for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp")
            if hasattr(os, name)  # not on Windows
        ),
        *(_patch(*one) for one in other_loops.REPLACED),
        _patch(queue, "SimpleQueue", simple_queue.followed),
        _patch(sched.scheduler, "enterabs", timers.by_enter),
        _patch(sched.scheduler, "cancel", timers.by_cancel),
        _patch(asyncio.Queue, "put_nowait", partial(queues.by_put, may_drop=True)),
        _patch(asyncio.Queue, "get_nowait", queues.by_get_nowait),
        _patch(asyncio.Queue, "get", queues.by_get),
        _patch(asyncio.Queue, "task_done", queues.by_done),
        _patch(queue.Queue, "put", queues.by_put),
        _patch(queue.Queue, "get", queues.by_thread_get),
        _patch(queue.Queue, "task_done", queues.by_done),
        *(
            _patch(module, "to_thread", queues.by_to_thread)
            for module in (asyncio.threads, asyncio)
        ),
        _patch(anyio.to_thread, "run_sync", partial(queues.by_to_thread, takes_options=True)),
        *(
            _patch(kind, name, queues.by_look)
            for kind in (asyncio.Queue, queue.Queue)
            for name in ("empty", "qsize")
        ),
        _patch(MemoryObjectSendStream, "send_nowait", queues.by_put),
        _patch(MemoryObjectSendStream, "send", queues.by_send),
        _patch(MemoryObjectReceiveStream, "receive_nowait", queues.by_get_nowait),
        _patch(MemoryObjectReceiveStream, "receive", queues.by_get),
        _patch(Channel, "send", queues.by_send),
        _patch(Channel, "send_nowait", queues.by_put),
        _patch(Lane, "receive", queues.by_get),
        _patch(Lane, "batch", partial(queues.by_get, gives_list=True)),
        _patch(Reader, "__anext__", queues.by_get),
        _patch(BatchReader, "__anext__", partial(queues.by_get, gives_list=True)),
        _patch(asyncio.Event, "set", events.by_set),
        _patch(asyncio.Event, "wait", events.by_wait),
        _patch(asyncio.Condition, "notify", events.by_notify),
        _patch(asyncio.Condition, "wait", events.by_wait),
        _patch(threading.Event, "set", events.by_set),
        _patch(threading.Event, "wait", events.by_thread_wait),
        _patch(threading.Condition, "notify", events.by_notify),
        _patch(threading.Condition, "wait", events.by_thread_wait),
    ]
    if sys.version_info >= (3, 13):
        made += [
            _patch(kind, "shutdown", simple_queue.by_shutdown)
            for kind in (asyncio.Queue, queue.Queue)
        ]
    if sys.version_info < (3, 12):
        made += [
            _patch(module, "wait_for", queues.by_wait_for) for module in (asyncio.tasks, asyncio)
        ]
    return made


def _in_loop(loop: Any) -> list[Patch]:
    made = [_patch(loop, "call_at", timers.by_time, loop)]
    if type(loop).call_later is not asyncio.BaseEventLoop.call_later:
        made.append(_patch(loop, "call_later", timers.by_time, loop))
    if not isinstance(loop, asyncio.BaseEventLoop):  # a BaseEventLoop starts children by `Popen`
        made += [
            _patch(loop, name, child_processes.by_loop)
            for name in ("subprocess_exec", "subprocess_shell")
        ]
    return made


_hooks = Hooks(
    {
        **dict.fromkeys(handovers.MODULES, handovers.wrap_handovers),
        "uvloop": other_loops.wrap_uvloop,
    }
)
_lock = threading.RLock()  # nodes of several threads, each with an event loop of its own
_installed: dict[object, tuple[int, list[Patch]]] = {}


def install_routes(backend: Backend) -> Callable[[], None]:
    """Start to follow work that leaves hops, for one more user. Return the function that ends it for this user."""
    loop: Any = backend.loop
    keys = (None, loop) if backend.name == "asyncio" else (None,)
    with _lock:
        for key in keys:
            users, made = _installed.get(key) or (
                0,
                _everywhere() if key is None else _in_loop(key),
            )
            _installed[key] = (users + 1, made)
        _hooks.fit(is_wanted=True)
    return partial(_release, keys)


def _release(keys: tuple[object, ...]) -> None:
    with _lock:
        for key in keys:
            users, made = _installed.pop(key)
            if users > 1:
                _installed[key] = (users - 1, made)
            else:
                for one in reversed(made):
                    one.remove()
        if not _installed:
            _hooks.fit(is_wanted=False)
            other_loops.restore()
