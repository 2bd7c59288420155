"""Rules PMX53x: how arrays are replicated and placed around the call."""
