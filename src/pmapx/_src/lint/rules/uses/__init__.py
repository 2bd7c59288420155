"""Rules PMX50x: uses of pmap."""
