"""The block that lists every place where work leaves a hop, for tests of handlers and ASGI apps."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core import arguments
from quiesce.core.backends import running_backend
from quiesce.core.current import detached
from quiesce.errors import UsageError
from quiesce.testing.escaping.escape_report import Escapes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from quiesce.core.asgi_types import App
    from quiesce.mesh import Cascade, Node
    from quiesce.testing.escaping.trails import Trails


__all__: list[str] = []

_CLEANUP_SECONDS = 1.0


class escapes:  # noqa: N801 - it reads as what it does, like `contextlib.suppress`
    """List every place where work leaves a hop, with the effect on the verdict and what to write instead.

    Use it in a test, to learn how far you can trust a verdict on your handlers. If the hop holds the work, the place
    is `covered`: the verdict waits for the work. If the hop notices that the work leaves, the place is `untracked`:
    the verdict is `Unknown`. In the block, detectors also find places that a server does not notice: `unseen`.

    ```python
    async with escapes() as found:  # the block is a hop
        await handler(request)
    print(found)
    found.raise_if_any()

    found = await escapes(handler, request)  # the same

    async with escapes(app) as found:  # each request is a hop; the app's lifespan is that of the block
        await found.request("POST", "/orders", body=b"{}")
    ```

    The end of the block waits for the work that handlers have left running. A place whose work has not ended in time
    is `held`.

    Args:
        target: a handler, with `await`; or an ASGI app, with `async with`.
        args: the arguments of the handler.
        within: how many seconds the end of the block waits for work.
        node: the node of the hops, with its `services=` and `peers=`. It must not be open. By default, a new node
            without peers. An app that has a node keeps its own.
    """

    _is_begun = True  # no warning if the constructor raises

    def __init__(
        self,
        target: Callable[..., Any] | None = None,
        /,
        *args: Any,
        within: float = 5.0,
        node: Node | None = None,
    ) -> None:
        """Check the arguments; see the class."""
        if target is not None:
            arguments.check_callable(target, "escapes", "a handler, or an ASGI app")
        self._target = target
        self._args = args
        self._seconds = arguments.seconds("within", within)
        self._node = node or _node()
        self._trails: Trails | None = None
        self._found = Escapes()
        self._cascade: Cascade | None = None
        self._is_begun = False

    def __del__(self) -> None:
        """Warn if the block was never entered, as Python does for a coroutine that was never awaited."""
        if not self._is_begun:
            text = (
                "escapes() was never entered, and has checked nothing: write `async with escapes(app) as found:`,"
                " or `found = await escapes(handler, ...)`"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)

    def __await__(self) -> Generator[Any, Any, Escapes]:
        """Call the handler in a hop, and return the places; `result` of these is the handler's result."""
        self._is_begun = True
        return self._call().__await__()

    async def _call(self) -> Escapes:
        target, self._target = self._target, None
        if target is None:
            message = "escapes() has no handler to call: write `await escapes(handler, ...)`"
            raise UsageError(message)
        async with self as found:
            result = target(*self._args)
            found.result = await result if inspect.isawaitable(result) else result
        return found

    async def __aenter__(self) -> Escapes:
        """Start a hop; with an app, start the app.

        *Cancel safety*: if cancelled, nothing is left running.

        *Raises*: `UsageError` if the app does not start.
        """
        self._is_begun = True
        if self._trails is not None:
            message = (
                "this block of escapes() was entered before: call escapes() again for each block"
            )
            raise UsageError(message)
        from quiesce.testing.escaping.app_driver import DrivenApp  # noqa: PLC0415 - see _node()
        from quiesce.testing.escaping.detectors import begin_detecting  # noqa: PLC0415 - likewise

        self._trails = begin_detecting()
        try:
            if self._target is None:
                with detached():
                    await self._node.open()
                self._cascade = self._node.cascade("escapes")
                await self._cascade.__aenter__()
            else:
                trails, app = self._trails, self._served(self._target)
                served = self._found.application = DrivenApp(app, lambda: trails.count)
                await served.life.start()
        except BaseException:
            await self._close()
            raise
        return self._found

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the hop, wait for the work that is left running, and list the places where work has left.

        *Cancel safety*: if cancelled, the wait ends, and the app and the node are closed.
        """
        assert self._trails is not None  # noqa: S101 - entered
        try:
            if self._cascade is not None:
                await self._cascade.__aexit__(kind, error, traceback)
            if error is None:
                await self._trails.wait(self._seconds, running_backend().loop)
        finally:
            self._found.put(self._trails.found(), self._trails.count)
            await self._close()

    def _served(self, app: App) -> App:
        """Return the app with a node around it; unchanged if it has a node, or drains the server itself."""
        from quiesce.mesh.transport.asgi_server import Mesh  # noqa: PLC0415 - see _node()

        if isinstance(app, Mesh) or hasattr(app, "drains_server"):
            return app
        served: App = self._node.asgi(app, grace=_CLEANUP_SECONDS, cleanup=_CLEANUP_SECONDS)
        return served

    async def _close(self) -> None:
        try:
            with anyio.CancelScope(shield=True):  # both waits have a time limit
                if self._found.application is not None:
                    await self._found.application.life.stop()
                if self._node.own_scope is not None:
                    await self._node.aclose(_CLEANUP_SECONDS)
        finally:
            if self._trails is not None:
                self._trails.close()


def _node() -> Node:
    """Return a new node. The mesh is imported only here, because pytest loads this module at every start."""
    from quiesce.mesh import Memory, Node  # noqa: PLC0415 - see above

    node = Node("escapes", transport=Memory())
    node.is_telling_drain = False  # the table lists the work that is left
    return node
