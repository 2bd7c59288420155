"""The processes of a program: started, joined, watched and ended together."""
