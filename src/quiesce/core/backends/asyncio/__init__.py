"""asyncio and uvloop: only these modules depend on how asyncio runs its tasks.

In reading order:

- `backend`: implements the interface of `core.backends.base` for asyncio and uvloop.
- `tasks`: asyncio's tasks as holds; a job is a task that is its own hold.
- `foreign_task`: holds of tasks that another library's task factory makes.
- `adoption`: every task that is created in a scope's context is held by that scope.
- `service_tasks`: tasks that a service starts; they are part of the service while it waits for them.
- `shared_tasks`: adopted tasks that tasks of another scope await; they outlive their own scope.
- `awaiters`: finds the tasks that wait for a future.
- `swallowing`: finds out whether a cancelled task cleans up or ignores its cancellation.
- `thread_frames`: the frames of a task, and of the thread that it waits for.
- `cancel_origin`: finds out whether a cancelled task was cancelled by its own hop.
"""
