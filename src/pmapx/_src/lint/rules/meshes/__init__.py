"""Rules PMX56x: what newer JAX deprecated or renamed around meshes."""
