"""Which values are replicated, from their jaxpr: for the map, the audit and the codemod."""
