"""The same five programs with quiesce. They lose nothing."""
