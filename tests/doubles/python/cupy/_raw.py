"""cupy.RawKernel: no compiler, but a Python function of the kernel's name, from the file that DOUBLE_KERNELS names.

It is called with (grid, block, args) and does to the arrays in `args` what the kernel would.
"""

from __future__ import annotations

import os
import runpy

from cupy.cuda import nvrtc, runtime


class RawKernel:
    def __init__(
        self, code, name, options=(), backend="nvrtc", *, translate_cucomplex=False, enable_cooperative_groups=False,
        jitify=None,
    ):  # fmt: skip
        if not isinstance(code, str) or not isinstance(name, str) or not isinstance(options, tuple):
            raise TypeError("RawKernel(code: str, name: str, options: tuple)")
        if name not in code:
            raise ValueError(f"the double: no kernel {name} in this code")  # CuPy says so when it is called
        self.code, self.name, self.options, self.backend = code, name, options, backend

    def compile(self, log_stream=None):
        runtime.check_status(runtime._double.status())
        nvrtc.getVersion()

    def __call__(self, grid, block, args, **kwargs):
        self.compile()
        if not all(isinstance(part, tuple) for part in (grid, block, args)):
            raise TypeError("grid, block and args are tuples")
        file = os.environ.get("DOUBLE_KERNELS", "")
        known = runpy.run_path(file) if file else {}
        if self.name not in known:
            raise NotImplementedError(f"the double has no {self.name}: write it into the file of DOUBLE_KERNELS")
        known[self.name](grid, block, args)
