"""What a mapped function replicates, communicates and holds."""
