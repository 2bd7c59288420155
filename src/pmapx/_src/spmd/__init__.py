"""The user's function mapped over the axes of a mesh."""
