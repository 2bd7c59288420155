"""Ahead-of-time compilation for a target topology.

``devices`` finds the devices of a topology by its name. ``compile_for`` compiles a function for
them: pmapped functions are mapped again, and ``retrace_jit`` traces jitted ones on another mesh,
with the shardings that ``jit_shardings`` reads. ``interconnect`` estimates the time of collectives,
and ``scaling`` compares several topologies.
"""
