"""A block in which every place is listed where work leaves a hop."""

from __future__ import annotations

import inspect
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

    from quiesce.mesh import Cascade, Node
    from quiesce.testing.escaping.trails import Trails

    App = Callable[[Any, Any, Any], Any]

__all__: list[str] = []

_CLEANUP_SECONDS = 1.0


class escapes:  # noqa: N801 - it reads as what it does, like `contextlib.suppress`
    """List every place where work leaves a hop, with what happens there and what to write instead.

    Use it to find out what a verdict on your handlers is worth, before it is needed. Work that is held is `covered`:
    the verdict waits for it. Work that leaves by a way that is noticed is `untracked`: the verdict is `Unknown`. In
    the block, detectors look for ways that a server does not notice, too: `unseen`.

    ```python
    async with escapes() as found:  # the block is a hop
        await handler(request)
    print(found)
    found.raise_if_any()

    found = await escapes(handler, request)  # the same

    async with escapes(app) as found:  # each request is a hop; the app's lifespan is that of the block
        await found.request("POST", "/orders", body=b"{}")
    ```

    At the end of the block it waits for the work that was left; what is not over in time is `held`.

    Args:
        target: a handler, to be awaited; or an ASGI app, in an `async with`.
        args: what the handler is called with.
        within: how many seconds the work that is left has to end.
        node: the node whose hops they are, with its `services=` and `peers=`; it must not be open. By default one
            without peers. An app that has a node already keeps it.
    """

    def __init__(
        self,
        target: Callable[..., Any] | None = None,
        /,
        *args: Any,
        within: float = 5.0,
        node: Node | None = None,
    ) -> None:
        """See the class."""
        if target is not None:
            arguments.check_callable(target, "escapes", "a handler, or an ASGI app")
        self._target = target
        self._args = args
        self._seconds = arguments.seconds("within", within)
        self._node = node or _node()
        self._trails: Trails | None = None
        self._found = Escapes()
        self._cascade: Cascade | None = None

    def __await__(self) -> Generator[Any, Any, Escapes]:
        """Call the handler in a hop, and return what was found; `result` is what it returned."""
        return self._call().__await__()

    async def _call(self) -> Escapes:
        target, self._target = self._target, None
        if target is None:
            message = "there is no handler to be called: write `await escapes(handler, ...)`"
            raise UsageError(message)
        async with self as found:
            result = target(*self._args)
            found.result = await result if inspect.isawaitable(result) else result
        return found

    async def __aenter__(self) -> Escapes:
        """Begin a hop; of an app, start it.

        *Cancel safety*: if cancelled, nothing is left running.

        *Raises*: `UsageError` if the app does not start.
        """
        if self._trails is not None:
            message = "this block was entered before: make one for each"
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
        """End the hop, wait for the work that is left, and list where it went.

        *Cancel safety*: if cancelled, it waits no longer, and closes what it has opened.
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
        """Return the app in a node; as it is, if it has one, or drains the server itself."""
        from quiesce.mesh.transport.asgi_server import Mesh  # noqa: PLC0415 - see _node()

        if isinstance(app, Mesh) or hasattr(app, "drains_server"):
            return app
        served: App = self._node.asgi(app, grace=_CLEANUP_SECONDS, cleanup=_CLEANUP_SECONDS)
        return served

    async def _close(self) -> None:
        try:
            with anyio.CancelScope(shield=True):  # what it waits for has a limit
                if self._found.application is not None:
                    await self._found.application.life.stop()
                if self._node._scope is not None:
                    await self._node.aclose(_CLEANUP_SECONDS)
        finally:
            if self._trails is not None:
                self._trails.close()


def _node() -> Node:
    """Make a node of its own. The mesh is imported only here: pytest loads this module at every start."""
    from quiesce.mesh import Memory, Node  # noqa: PLC0415 - see above

    node = Node("escapes", transport=Memory())
    node._tells_drain = False  # what is left is in the table
    return node
