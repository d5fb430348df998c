"""One address for all replicas of an agent: each connection goes to the next of them."""

from __future__ import annotations

from tests.integration.mesh.proxy import Network, Proxy


class Balancer(Proxy):
    """A proxy in front of several replicas, which close each connection after one request."""

    def __init__(self, network: Network, name: str) -> None:
        """Choose a port; the doors come later."""
        self.doors: list[Door] = []
        self._turn = 0
        super().__init__(network, name)

    @property
    def target(self) -> int:
        """The port of the replica whose turn it is; 0 if none is there."""
        ports = [door.port for door in self.doors if door.port]
        self._turn += 1
        return ports[self._turn % len(ports)] if ports else 0

    @target.setter
    def target(self, port: int) -> None:
        """Do nothing: each door has its own."""

    def refuse(self) -> None:
        """Listen no more if no replica is left."""
        if not any(door.port for door in self.doors):
            super().refuse()


class Door:
    """What a replica's process has in place of a proxy of its own."""

    def __init__(self, balancer: Balancer) -> None:
        """Join the replicas behind an address."""
        self.balancer = balancer
        self.port = 0
        balancer.doors.append(self)

    @property
    def url(self) -> str:
        """The address of all replicas."""
        return self.balancer.url

    @property
    def target(self) -> int:
        """The port of the replica."""
        return self.port

    @target.setter
    def target(self, port: int) -> None:
        """Send connections to the replica from now on, or none."""
        self.port = port

    async def accept(self) -> None:
        """Listen."""
        await self.balancer.accept()

    def refuse(self) -> None:
        """Listen no more if no replica is left: its connections have ended with its process."""
        self.balancer.refuse()
