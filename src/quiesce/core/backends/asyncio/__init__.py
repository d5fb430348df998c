"""asyncio, and uvloop: the only modules that know how asyncio runs its tasks.

In reading order:

- `backend`: the contract of `core.backends.base`, for asyncio and uvloop.
- `tasks`: asyncio's tasks as holds; a job is a task that is its own hold.
- `foreign_task`: holds of tasks that another library's task factory makes.
- `adoption`: every task that is created in a scope's context is held by that scope.
- `service_tasks`: tasks that a service starts; they are part of the service while it waits for them.
- `shared_tasks`: adopted tasks that another scope's task awaits; they outlive their own scope.
- `awaiters`: which tasks wait for a future.
- `swallowing`: whether a cancelled task cleans up, or goes on as if it had not been cancelled.
- `cancel_origin`: whether a cancelled task was cancelled by its own hop.
"""
