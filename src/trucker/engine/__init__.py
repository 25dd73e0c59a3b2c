"""The engine: capture, micro-batches, snapshots. The only place that imports pyspark, and not on its own import."""
