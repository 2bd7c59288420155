"""Host-local arrays as global ones and back, in programs of several processes."""
