"""HTTP clients of others inside of hops: what they send to peers is noticed, or becomes a message."""
