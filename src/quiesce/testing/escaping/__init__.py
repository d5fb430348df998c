"""A test helper that lists the places where work leaves a hop: `escapes`.

In reading order:

- `escapes`: the block that lists every place where work leaves a hop.
- `escape_report`: the list of places, with what to write instead at each.
- `trails`: what is recorded of each hop while hops are watched.
- `detectors`: detectors that are too slow for a server.
- `app_driver`: an ASGI app that runs without a server.
"""
