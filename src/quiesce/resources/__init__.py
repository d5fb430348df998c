"""What agent programs are made of, beside tasks: channels and streams, each owned by a scope."""
