"""cupy.ndarray over the double's device memory.

The arithmetic is numpy's, on the same bytes. What CuPy refuses is refused: numpy arrays do not mix with it, nothing
converts to numpy by itself, and one element of an array is an array.
"""

from __future__ import annotations

import ctypes
import operator

import numpy

from cupy.cuda import memory, nvrtc
from cupy.cuda.device import Device
from cupy.cuda.stream import get_current_stream


def _host(value):
    """A numpy view of a device array; scalars as they are; numpy arrays refused."""
    if isinstance(value, ndarray):
        return value._view
    if isinstance(value, numpy.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def _device(result, keep=None):
    """What numpy computed as a device array: on the memory of `keep` where it is a view of that, else a new one."""
    result = numpy.asarray(result)
    if keep is not None and numpy.shares_memory(result, keep._view):
        return ndarray._from(result, keep.data.mem)
    made = ndarray(result.shape, result.dtype)
    made._view[...] = result
    return made


class ndarray:
    """See `cupy.ndarray`."""

    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        shape = tuple(shape) if isinstance(shape, (tuple, list)) else (operator.index(shape),)
        kind = numpy.dtype(dtype)
        if kind.kind not in "biufc":
            raise ValueError(f"Unsupported dtype {kind}")
        size = kind.itemsize * int(numpy.prod(shape, dtype=numpy.int64))
        self.data = memory.alloc(size) if memptr is None else memptr
        if strides is None and self.data.ptr - self.data.mem.ptr + size > self.data.mem.size:
            raise ValueError("the double: this array ends behind its memory")  # CuPy would not notice
        raw = (ctypes.c_ubyte * max(self.data.mem.size - (self.data.ptr - self.data.mem.ptr), 0)).from_address(
            self.data.ptr or ctypes.addressof(_NOTHING)
        )
        self._view = numpy.ndarray(shape, kind, raw, 0, strides, order)

    @classmethod
    def _from(cls, view, mem):
        made = cls.__new__(cls)
        made._view = view
        made.data = memory.MemoryPointer(mem, view.__array_interface__["data"][0] - mem.ptr if view.size else 0)
        return made

    # -- facts --

    dtype = property(lambda self: self._view.dtype)
    shape = property(lambda self: self._view.shape)
    strides = property(lambda self: self._view.strides)
    size = property(lambda self: self._view.size)
    ndim = property(lambda self: self._view.ndim)
    itemsize = property(lambda self: self._view.itemsize)
    nbytes = property(lambda self: self._view.nbytes)
    flags = property(lambda self: self._view.flags)
    device = property(lambda self: Device(self.data.device_id))
    T = property(lambda self: self._from(self._view.T, self.data.mem))

    @property
    def __cuda_array_interface__(self):
        strides = None if self._view.flags.c_contiguous else self.strides
        stream = get_current_stream().ptr
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "stream": max(1, stream),
            "version": 3,
            "strides": strides,
            "data": (self.data.ptr, False),
        }

    # -- to and from the host --

    def __array__(self, dtype=None, copy=None):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is None:
            return self._view.copy(order)
        out[...] = self._view
        return out

    def set(self, arr, stream=None):
        if not isinstance(arr, numpy.ndarray) or arr.shape != self.shape:
            raise ValueError("Shape mismatch or not a numpy.ndarray")
        self._view[...] = arr.astype(self.dtype)

    def item(self):
        return self._view.item()

    def tolist(self):
        return self._view.tolist()

    def tobytes(self, order="C"):
        return self._view.tobytes(order)

    def __bool__(self):
        return bool(self._view)

    def __int__(self):
        return int(self._view)

    def __index__(self):
        return operator.index(self._view.item())

    def __float__(self):
        return float(self._view)

    def __len__(self):
        return len(self._view)

    def __iter__(self):
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return repr(self._view)

    # -- parts --

    def __getitem__(self, slices):
        slices = slices if isinstance(slices, tuple) else (slices,)
        found = self._view[(*map(_host, slices), *(() if Ellipsis in _plain(slices) else (Ellipsis,)))]
        return _device(found, self)

    def __setitem__(self, slices, value):
        if isinstance(value, numpy.ndarray):
            if not (type(slices) is slice and slices == slice(None)):
                _host(value)
            if value.dtype != self.dtype or value.shape != self.shape:
                raise ValueError(
                    "copying a numpy.ndarray to a cupy.ndarray by empty slice assignment must ensure arrays have "
                    "same shape and dtype"
                )
            self._view[...] = value
            return
        slices = tuple(map(_host, slices)) if isinstance(slices, tuple) else _host(slices)
        self._view[slices] = _host(value)

    def fill(self, value):
        if value != 0:  # zeros are a memset, all else a kernel
            nvrtc.getVersion()
        self._view.fill(_host(value))

    def view(self, dtype=None, type=None):
        return self._from(self._view if dtype is None else self._view.view(dtype), self.data.mem)

    def reshape(self, *shape, order="C", copy=None):
        return _device(self._view.reshape(*shape, order=order), self)

    def ravel(self, order="C"):
        return _device(self._view.ravel(order), self)

    def squeeze(self, axis=None):
        return _device(self._view.squeeze(axis), self)

    def copy(self, order="C"):
        return _device(self._view.copy(order))

    def flatten(self, order="C"):
        return _device(self._view.flatten(order))

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        if not copy and self.dtype == dtype:
            return self
        return _device(self._view.astype(dtype, order))

    def nonzero(self):
        return tuple(_device(part) for part in self._view.nonzero())

    # -- ufuncs --

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__":
            return NotImplemented
        out = kwargs.pop("out", None)
        result = _device(ufunc(*map(_host, inputs), **kwargs))
        if out is None:
            return result
        out[0]._view[...] = result._view
        return out[0]


def _plain(slices):
    """Without arrays, for which `in` does not work."""
    return [part for part in slices if not isinstance(part, (ndarray, numpy.ndarray, list))]


_NOTHING = ctypes.c_ulonglong()


def _binary(name, reflected):
    def method(self, other):
        if isinstance(other, numpy.ndarray):
            raise TypeError(f"Unsupported type {type(other)}")
        result = getattr(self._view, name)(_host(other))
        return result if result is NotImplemented else _device(result)

    method.__name__ = name
    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(ndarray, f"__{_name}__", _binary(f"__{_name}__", False))
    setattr(ndarray, f"__r{_name}__", _binary(f"__r{_name}__", True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(ndarray, f"__{_name}__", _binary(f"__{_name}__", False))


def _in_place(name):
    def method(self, other):
        getattr(self._view, name)(_host(other))
        return self

    return method


for _name in ("add", "sub", "mul", "truediv", "and", "or", "xor", "lshift", "rshift"):
    setattr(ndarray, f"__i{_name}__", _in_place(f"__i{_name}__"))


def _unary(name):
    return lambda self: _device(getattr(self._view, name)())


for _name in ("neg", "abs", "invert", "pos"):
    setattr(ndarray, f"__{_name}__", _unary(f"__{_name}__"))


def _any(self, axis=None, out=None, keepdims=False):
    return _device(self._view.any(axis, keepdims=keepdims))


def _all(self, axis=None, out=None, keepdims=False):
    return _device(self._view.all(axis, keepdims=keepdims))


def _max(self, axis=None, out=None, keepdims=False):
    return _device(self._view.max(axis, keepdims=keepdims))


def _min(self, axis=None, out=None, keepdims=False):
    return _device(self._view.min(axis, keepdims=keepdims))


def _argmax(self, axis=None, out=None, dtype=None, keepdims=False):
    return _device(self._view.argmax(axis))


def _argmin(self, axis=None, out=None, dtype=None, keepdims=False):
    return _device(self._view.argmin(axis))


def _sum(self, axis=None, dtype=None, out=None, keepdims=False):
    return _device(self._view.sum(axis, dtype, keepdims=keepdims))


def _mean(self, axis=None, dtype=None, out=None, keepdims=False):
    return _device(self._view.mean(axis, dtype, keepdims=keepdims))


for _function in (_any, _all, _max, _min, _argmax, _argmin, _sum, _mean):
    setattr(ndarray, _function.__name__.removeprefix("_"), _function)
