"""What becomes of each use of pmap, and why."""
