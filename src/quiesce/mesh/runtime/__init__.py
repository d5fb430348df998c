"""A node in a running program: hops, cascades, and the calls between nodes.

In reading order:

- `node`: one agent's part in the mesh.
- `open_node`: a node while it is open. Its steps pass an event to the engine, write its records, and carry out its requests.
- `refusals`: the errors for messages that a node does not work on.
- `shared_node`: what an open node does if it shares its store with other replicas.
- `edge_names`: the names of edges in a node: their ids, or their keys.
- `node_events`: what a node tells to functions that watch it.
- `node_scope`: the scope of a node, which notifies the node when it is closed.
- `hop`: the scope of the work on one message.
- `hop_failures`: records the failures of a hop's jobs.
- `hop_parts`: parts of a hop's work that tasks of other scopes do.
- `delegation`: one message to another agent, from before it is sent until its fate is known.
- `cascade`: a cascade, for the program that began it.
- `settlement`: the verdict on a cascade, and its text.
- `progress`: finds the agents that are still busy with a cascade.
- `left_running`: the work of a closed node's hops that still runs, and what to do about it.
- `hop_tree`: draws hops as a tree.
- `peer_calls`: the calls that a node makes to other nodes, and its answers to their calls.
- `call_errors`: why the last call to each address has failed, for messages.
- `unposted`: the receipts that a closing node still has to post.
- `receipt_pull`: asks for receipts that another node cannot post to this node.
- `peers`: the servers that a node knows as part of the mesh.
- `admission`: which callers may hand over messages, and how many of them a node keeps in memory.
"""
