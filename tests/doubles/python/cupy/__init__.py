"""A stand-in for CuPy 14 on memory of the host: the names that commbench uses, with CuPy's signatures.

Not a copy of CuPy: it knows one way of each thing, and what a GPU does later is done at once. See tests/doubles.
"""

import numpy as _numpy
from numpy import (
    bool_,
    complex64,
    complex128,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip

from cupy import cuda
from cupy._array import _device, _host, ndarray
from cupy._raw import RawKernel

__version__ = "14.2.0"

_pool = cuda.MemoryPool()


def get_default_memory_pool():
    return _pool


def empty(shape, dtype=float, order="C"):
    return ndarray(shape, dtype, order=order)


def zeros(shape, dtype=float, order="C"):
    return full(shape, 0, dtype, order)


def ones(shape, dtype=float, order="C"):
    return full(shape, 1, dtype, order)


def full(shape, fill_value, dtype=None, order="C"):
    made = ndarray(shape, _numpy.asarray(_host(fill_value)).dtype if dtype is None else dtype, order=order)
    made.fill(fill_value)
    return made


def empty_like(prototype, dtype=None, order="K", subok=None, shape=None):
    return ndarray(prototype.shape if shape is None else shape, prototype.dtype if dtype is None else dtype)


def zeros_like(a, dtype=None, order="K", subok=None, shape=None):
    made = empty_like(a, dtype, shape=shape)
    made.fill(0)
    return made


def arange(start, stop=None, step=1, dtype=None):
    return _device(_numpy.arange(start, stop, step, dtype) if stop is not None else _numpy.arange(start, dtype=dtype))


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    return _device(_numpy.array(obj._view if isinstance(obj, ndarray) else obj, dtype))


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    if isinstance(a, ndarray) and dtype in (None, a.dtype) and not copy:
        return a
    return array(a, dtype)


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    found = a.get() if isinstance(a, ndarray) else _numpy.asarray(a, order=order)
    if out is None:
        return found
    out[...] = found
    return out


def copyto(dst, src, casting="same_kind", where=None):
    _numpy.copyto(dst._view, _host(src), casting)


def array_equal(a1, a2, equal_nan=False):
    return _device(_numpy.array_equal(_host(a1), _host(a2)))


def count_nonzero(a, axis=None):
    return _device(_numpy.count_nonzero(_host(a), axis))


def where(condition, x=None, y=None):
    if x is None:
        return condition.nonzero()
    return _device(_numpy.where(_host(condition), _host(x), _host(y)))
