"""A world of nodes, simulated: faults at every turn, and a ground truth that the nodes do not see."""
