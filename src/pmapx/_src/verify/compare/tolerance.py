"""How much two values may differ and still count as equal."""

import dataclasses

import numpy as np

from pmapx._src.verify.record.array_record import Array

# Relative to the largest value of an array: what summation in another order changes.
_BY_TYPE = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float": 1e-9,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 1e-2,
    "bfloat16": 3e-2,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """A difference up to ``atol + rtol * |before|`` is within tolerance.

    The default depends on the dtype: float32 may differ by 1e-5 of the array's largest value,
    float64 by 1e-9, float16 by 1e-2 and bfloat16 by 3e-2; integers and booleans not at all.

    >>> Tolerance().limit(np.array([1.0, 1000.0]), "float32")
    array([0.01, 0.01])
    >>> Tolerance(rtol=0.5, atol=0).limit(np.array([1.0, 1000.0]), "float32")
    array([  0.5, 500. ])
    """

    rtol: float | None = None
    atol: float | None = None

    def limit(self, before: Array, dtype: str) -> Array:
        size = np.abs(before.astype(np.complex128 if before.dtype.kind == "c" else np.float64))
        if self.rtol is None and self.atol is None:
            finite = size[np.isfinite(size)]
            largest = float(finite.max()) if finite.size else 0.0
            narrow = 0.25 if dtype.startswith("float8") else 0.0
            return np.full(size.shape, _BY_TYPE.get(dtype, narrow) * largest)
        with np.errstate(invalid="ignore"):
            return np.asarray((self.atol or 0.0) + (self.rtol or 0.0) * size)

    def __str__(self) -> str:
        if self.rtol is None and self.atol is None:
            return "1e-05 of the largest value for float32"
        return f"rtol {self.rtol or 0.0:g}, atol {self.atol or 0.0:g}"
