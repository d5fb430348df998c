"""The mesh: cascades of agents that hand work to each other, and how to know that one has settled."""
