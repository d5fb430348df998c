"""Pushes that survive a crash: a durable webhook sender.

In reading order:

- `push_sender`: pushes are written with the state that they tell of, and sent in order.
- `push_lanes`: one lane for each task and receiver.
- `push_post`: one push: to the address that was looked up and checked, without redirects.
- `push_outbox`: where pushes wait until they are delivered; in memory.
- `sqlite_outbox`: the same in a file that outlives the process.
- `push_signing`: signatures of pushes.
"""
