"""cupy.cuda.graph."""

from __future__ import annotations

from cupy.cuda import runtime


class Graph:
    def __init__(self, *args, **kwargs):
        raise RuntimeError(
            "currently this class cannot be initiated by the user and must be created via stream capture"
        )

    @classmethod
    def _of(cls, graph):
        made = cls.__new__(cls)
        made.graph = graph
        made.graphExec = runtime.graphInstantiate(graph)
        return made

    def launch(self, stream=None):
        from cupy.cuda.stream import get_current_stream

        runtime.graphLaunch(self.graphExec, (get_current_stream() if stream is None else stream).ptr)
