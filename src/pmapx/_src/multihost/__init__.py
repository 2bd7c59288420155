"""Multi-process arrays.

``host_local`` converts host-local arrays to global ones and back, ``differentiable`` does so under
``grad`` and ``vmap``, ``agreement`` compares values between processes.
"""
