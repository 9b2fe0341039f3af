"""The events of a world: sentences that extend its prompt during a walk."""
