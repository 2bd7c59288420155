"""Rules PMX51x: names that JAX removed."""
