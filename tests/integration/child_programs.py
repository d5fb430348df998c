"""Child programs for the tests of readiness: `child_programs.py NAME [ARGUMENT…]` runs one.

Each reads a line before it does what it is for, so that the test decides when, then prints "done"
and stays until its standard input ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def await_go() -> None:
    """Wait for the test's word."""
    sys.stdin.readline()


def stay() -> None:
    """Print that the program is done, and stay until the test ends."""
    print("done", flush=True)  # noqa: T201 - that is how it is told
    sys.stdin.read()


def unix(path: str) -> None:
    """Listen on a unix socket."""
    await_go()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("\0" + path[1:] if path.startswith("@") else path)
        sock.listen()
        stay()


def tcp(host: str, port: str) -> None:
    """Listen on a TCP port."""
    await_go()
    with socket.create_server((host, int(port))):
        stay()


def http(where: str, *answers: str) -> None:
    """Answer one connection after the other with what is given, and the last with the last.

    `where` is a port, a path, or the variable with the number of a socket that was handed down.
    """
    await_go()
    if where in os.environ:
        server = socket.socket(fileno=int(os.environ[where]))
    elif where.isdigit():
        server = socket.create_server(("127.0.0.1", int(where)))
    else:
        server = socket.socket(socket.AF_UNIX)
        server.bind(where)
        server.listen()
    with server:
        for number in range(1000):
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                answer = answers[min(number, len(answers) - 1)]
                connection.sendall(answer.encode().decode("unicode_escape").encode("latin-1"))
            if number == len(answers) - 1:
                stay()


def line(*lines: str) -> None:
    """Write lines."""
    await_go()
    for text in lines:
        print(text, flush=True)  # noqa: T201 - that is what it is for
    stay()


def command(*argv: str) -> None:
    """Run a command."""
    await_go()
    subprocess.run(argv, stdin=subprocess.DEVNULL, check=True)
    stay()


def fd(number: str, *words: str) -> None:
    """Write words to an inherited descriptor, then close it."""
    await_go()
    end = int(number if number.isdigit() else os.environ[number])
    for word in words:
        os.write(end, word.encode().decode("unicode_escape").encode())
        await_go()
    os.close(end)
    stay()


def accept() -> None:
    """Serve a listener that was handed down: greet one connection."""
    await_go()
    with socket.socket(fileno=int(os.environ["LISTEN_FD"])) as server:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"hello")
        stay()


def wrapped(session: str, *argv: str) -> None:
    """Run another program in a process below this one, as a shell script does."""
    program = [sys.executable, __file__, *argv]
    fds = [int(os.environ[name]) for name in ("READY_FD", "LISTEN_FD") if name in os.environ]
    subprocess.run(program, start_new_session=session == "own", pass_fds=fds, check=False)


if __name__ == "__main__":
    FUNCTIONS = (unix, tcp, http, line, command, fd, accept, wrapped)
    PROGRAMS = {function.__name__: function for function in FUNCTIONS}
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
