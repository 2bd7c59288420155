"""XLA's flags for the programs that tests run: virtual CPU devices, and little optimization.

The programs are small: to compile them takes longer than to run them, however slowly they run. Two
programs whose results are compared to the bit are compiled with the same flags.
"""

import importlib.metadata

# On a loaded machine, XLA would end a process whose threads wait 40 seconds for each other.
PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=300"
UNOPTIMIZED = (
    f"--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true {PATIENT}"
)
CHEAP_COMPILATION = UNOPTIMIZED
# XLA ends a process that gives it a flag that it does not know, and later releases have no other
# emitters. Without these, a small program takes two thirds of the time to compile, and two that
# are fused differently may round differently. A program that is compiled in one part instead of up
# to 32 takes four fifths of the time; with the other emitters the parts make no difference.
if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
    CHEAP_COMPILATION += (
        " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    )


def forced(devices):
    """The flag for so many virtual CPU devices."""
    return f"--xla_force_host_platform_device_count={devices}"


def xla_flags(devices=None):
    """The value of XLA_FLAGS for a program on so many CPU devices, or as many as it asks for."""
    return CHEAP_COMPILATION if devices is None else f"{forced(devices)} {CHEAP_COMPILATION}"
