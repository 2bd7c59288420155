"""Rules PMX52x and 531: reading one device's shard."""
