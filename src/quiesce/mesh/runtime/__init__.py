"""A node in a running program: hops, cascades, and the calls between nodes.

In reading order:

- `node`: one agent's part in the mesh.
- `node_steps`: the steps of a node: tell the engine, write what it wants written, do what it wants done.
- `node_scope`: the scope of a node, which tells the node when it is closed.
- `hop`: the scope of the work on one message.
- `hop_parts`: what tasks that are not the hop's own do for it.
- `delegation`: handing a message to another agent, from before its bytes leave until its end is known.
- `cascade`: a cascade, for the program that began it.
- `settlement`: what is known of a cascade in the end.
- `progress`: which agents are still busy with a cascade.
- `hop_tree`: hops as a tree, for people.
- `peer_calls`: what a node says to other nodes by itself, and how it answers them.
- `unposted`: receipts that are still to be posted when a node is closed.
- `receipt_pull`: asking for receipts that a node cannot post.
- `peers`: the servers that take part, as far as a node knows them.
- `admission`: which callers may hand over messages, and how much a node keeps of them.
"""
