"""cupy.cuda.nvrtc: only its version. DOUBLE_NVRTC=missing is a machine without the library."""

from __future__ import annotations

import os


def getVersion():
    if os.environ.get("DOUBLE_NVRTC") == "missing":
        raise RuntimeError('Failure finding "libnvrtc.so.12": No such file: libnvrtc.so.12')
    return 12, 9
