"""Ahead-of-time compilation for a target topology.

``names`` parses the name of a topology, and ``devices`` finds its devices. ``compile_for`` compiles
a function for them, and compares its cost on several: pmapped functions are mapped again
(``remap_pmap``), and ``retrace_jit`` traces jitted ones on another mesh (``functions_on_mesh``),
with the shardings that its options have; both return a trace (``retraced``). Which arguments grow
is decided in ``growing_arguments``, from the jaxpr (``dimension_exponents``). ``interconnect``
estimates the time of collectives.
"""
