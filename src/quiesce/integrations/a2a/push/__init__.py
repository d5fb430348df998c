"""Pushes that survive a crash: a durable webhook sender.

In reading order:

- `push_sender`: writes the pushes of a state before the state is stored, and sends them in order.
- `push_lanes`: one lane for each task and receiver: sends waiting pushes in order, retries, and gives up.
- `push_post`: posts one push, to an address that was checked, without following redirects.
- `push_outbox`: where pushes wait until they are delivered, and an outbox in memory.
- `sqlite_outbox`: an outbox in a file, which outlives the process.
- `push_signing`: signatures of pushes.
"""
