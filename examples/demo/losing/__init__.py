"""Five programs as people write them today. They lose work."""
