"""Arrays with a leading device axis: made, read and prefetched."""
