"""The engine applies the changes of a source to its destinations. Only the engine imports pyspark."""
