"""Devices, meshes and placement."""
