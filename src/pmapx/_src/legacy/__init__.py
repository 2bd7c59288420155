"""Code written for the old pmap, run unchanged: what JAX removed is put back, and taken out."""

from pmapx._src.legacy.installation import Installation, install, uninstall

__all__ = ["Installation", "install", "uninstall"]
