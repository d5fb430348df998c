"""Where work leaves a hop: `escapes`.

In reading order:

- `escapes`: a block in which every place is listed where work leaves a hop.
- `escape_report`: one such place, and what to write instead.
- `trails`: what is seen of each hop while hops are watched.
- `detectors`: detectors that a server would not pay for.
- `app_driver`: an ASGI app that runs without a server.
"""
