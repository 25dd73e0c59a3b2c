"""NATS JetStream as a destination. `sink` says how what is there is told from what is not."""
