"""asyncio, and uvloop: the only modules that know how asyncio runs its tasks.

In reading order:

- `backend`: the contract of `core.backends.base`, for asyncio and uvloop.
- `tasks`: tasks as holds: a job is a task that carries its own hold.
- `foreign_task`: tasks that a task factory of other code makes, as holds.
- `adoption`: every task that is created in a scope's context is held by that scope.
- `service_tasks`: tasks that a service starts: part of the service while it waits for them.
- `shared_tasks`: a task that another scope's task awaits outlives the scope that adopted it.
- `awaiters`: which tasks wait for a future.
- `swallowing`: whether a cancelled task cleans up, or goes on as if it had not been cancelled.
- `cancel_origin`: whether the hop of a cancelled task cancelled it.
"""
