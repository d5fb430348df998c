"""A harness that hosts one runner process per conversation, each behind a unix socket.

`python examples/runner_harness.py` plays it through: two conversations, a runner that crashes and
is replaced, and SIGTERM in the middle of an answer. Started with the path of a socket, this file is
the runner: it keeps one conversation in memory, and answers one message a connection.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import quiesce
from quiesce import ready


def runner(path: str) -> None:
    """Run as a runner: count the messages of one conversation."""
    conversation = os.environ["QUIESCE_RUNNER_KEY"]
    count = 0
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rw", encoding="utf-8") as file:
                message = file.readline().strip()
                if not message:
                    continue  # the readiness probe connects and leaves
                if message == "crash":
                    os._exit(3)
                if message == "think":
                    time.sleep(0.3)
                count += 1
                print(f"{conversation}'s message {count} was {message!r}", file=file, flush=True)


class Harness:
    """Brings each message to the runner of its conversation."""

    def __init__(self, folder: Path) -> None:
        """Make a pool in the current scope; a runner is started when its first message comes."""
        self.folder = folder
        self.pool = quiesce.RunnerPool(
            self.program, runners_max=10, idle_seconds=300, name="runners"
        )

    def path(self, conversation: str) -> str:
        """Return the socket of a conversation."""
        return str(self.folder / f"{conversation}.sock")

    def sockets(self) -> list[str]:
        """List the sockets that exist."""
        return sorted(path.name for path in self.folder.iterdir())

    def program(self, conversation: str) -> quiesce.Program:
        """Return the program of the runner of a conversation."""
        path = self.path(conversation)
        return quiesce.Program([sys.executable, __file__, path], ready=ready.UnixSocket(path))

    async def say(self, conversation: str, message: str, sent: asyncio.Event | None = None) -> None:
        """Send a message to the runner of its conversation, and print the answer; the first message starts the runner."""
        async with self.pool.lease(conversation) as process:
            reader, writer = await asyncio.open_unix_connection(self.path(conversation))
            writer.write(f"{message}\n".encode())
            if sent is not None:
                sent.set()
            answer = (await reader.readline()).decode().strip()
            writer.close()
            if not answer:
                answer = f"{conversation}'s runner has exited with {await process.wait()}"
            print(answer, flush=True)


async def main() -> None:
    """Play two conversations, and then stop the harness with SIGTERM."""
    with tempfile.TemporaryDirectory() as folder:
        async with quiesce.Scope("harness") as scope:
            harness = Harness(Path(folder))
            await harness.say("red", "hello")
            await harness.say("blue", "good morning")
            await harness.say("red", "how are you?")
            await harness.say("red", "crash")
            await harness.say("red", "are you there?")
            await harness.say("blue", "and you?")
            stats = harness.pool.stats
            print(f"{stats.ready} runners, {stats.started} started, {stats.crashed} crashed")
            sent = asyncio.Event()
            scope.spawn(harness.say, "blue", "think", sent)
            await sent.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await scope.closing()
            print("no more messages, please", flush=True)
        print("sockets left:", harness.sockets())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        runner(sys.argv[1])
    else:
        quiesce.run(main, grace=10)
