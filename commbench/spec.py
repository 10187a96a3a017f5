"""What to measure: points and sweeps. Frozen, checked at birth.

A *point* is one setting of all independent variables; points that differ in bytes only form a *curve*.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from commbench.errors import UsageError
from commbench.ops import DTYPES, OPERATIONS, REDUCTIONS

UNKNOWN = "unknown"  # any text key of a point that an imported file does not give
MODES = ("sync", "pipe", "graph")
CACHES = ("hot", "rotated")
DEVICES = ("cpu", "cuda")
THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
LOOPS = ("auto", "compiled", "python")
MAX_SIZES = 4096
SAME_GPU = "same-gpu"
HOST = -1
"""Stands for the host's memory where the endpoints of a copy are numbered as GPUs are; "host" in words."""
READ = "read"
"""The path whose points have one size, an address."""
READ_BYTES = 8
COPY_PATHS: Mapping[str, str] = {
    "peer": "peer access on",
    "staged": "peer access off: the driver goes through host memory",
    READ: "a kernel on the target loads from the source, one address after the other",
    "local": "inside one GPU, read and written, counted once",
    "pinned": "page-locked host memory",
    "pageable": "ordinary host memory",
}
"""The ways that a copy can take between GPUs, inside one, and between a GPU and the host."""

InPlace = Literal["native", "no", "yes", "both"]


@dataclass(frozen=True, slots=True)
class Point:
    """The independent variables of one measurement: the key for every join.

    What an imported file does not say is `UNKNOWN`, for `ranks` 0, for `redop` and `root` None.

    Attributes:
        redop: the reduction, None for operations that do not reduce.
        root: the root's rank, None for operations without one.
        bytes: D as `ops` defines it per operation.
        path: the interconnect asked for ("auto": whatever the library takes), or the way that a copy takes.
        mode: "sync" (one call at a time, ranks aligned), "pipe" (back to back) or "graph" (a CUDA graph of them).
        cache: "hot" (one buffer) or "rotated" (slices beyond the last-level cache).
        device: where the buffers are, "cpu" or "cuda".
        variant: what only some points have, as "imbalance=1.5", "pair=0,3", "bidirectional" or "staged".
    """

    op: str
    in_place: bool
    dtype: str
    redop: str | None
    root: int | None
    bytes: int
    ranks: int
    backend: str
    device: str
    path: str
    mode: str
    cache: str
    variant: str = ""

    def key(self) -> dict[str, Any]:
        """Point keys as the results file and `--json` spell them; `variant` only where there is one."""
        key = asdict(self)
        if not self.variant:
            del key["variant"]
        return key

    @classmethod
    def from_key(cls, key: Mapping[str, Any]) -> Point:
        """The point of a JSON object that holds at least the point keys.

        Raises:
            KeyError: when one is missing.
        """
        return cls(**{name: key[name] for name in _POINT_KEYS}, variant=key.get("variant", ""))

    @property
    def curve(self) -> Point:
        """The curve this point is on, as the point with no size."""
        return replace(self, bytes=0)

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype]

    @property
    def block(self) -> int:
        """Elements of one rank's block, or of the message where D is not split over ranks."""
        return OPERATIONS[self.op].block_elements(self.bytes, self.itemsize, self.ranks)

    @property
    def bus_factor(self) -> float | None:
        """Bus bandwidth / algorithm bandwidth; None where operation or ranks are unknown and it depends on them."""
        if self.op not in OPERATIONS:
            return None
        factor = OPERATIONS[self.op].bus_factor
        if self.ranks:
            return factor(self.ranks)
        return factor(2) if factor(2) == factor(3) else None

    def option(self, name: str) -> str | None:
        """What `variant` says about `name`: for "pair" in "pair=0,3;bidirectional" that is "0,3"."""
        for word in self.variant.split(";"):
            key, _, value = word.partition("=")
            if key == name:
                return value
        return None


_POINT_KEYS = tuple(f.name for f in fields(Point) if f.name != "variant")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a back end can do, known without loading its library.

    Attributes:
        forms: per operation whether it exists out of place (False), in place (True), or both; native first.
        moves: data types that can be moved.
        reduces: per reduction the data types it exists for.
        devices: where its buffers can be; the usual one first.
        modes: the modes it can be timed in.
        caches: the cache modes it offers.
        paths: the ways that its copies can take; such a back end works between endpoints, which are no ranks.
        usual: fields of a sweep whose usual value is another for it.
    """

    forms: Mapping[str, tuple[bool, ...]]
    moves: frozenset[str]
    reduces: Mapping[str, frozenset[str]]
    devices: tuple[str, ...] = ("cpu",)
    modes: tuple[str, ...] = ("sync", "pipe")
    caches: tuple[str, ...] = CACHES
    paths: tuple[str, ...] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)


ANY_TYPE = frozenset(DTYPES)
ANY_REDUCTION: Mapping[str, frozenset[str]] = dict.fromkeys(REDUCTIONS, ANY_TYPE) | {
    "avg": frozenset(name for name in DTYPES if "float" in name)
}
"""What a library has that reduces every type, and averages those with a fraction."""

USUAL_ON_GPUS: Mapping[str, Any] = {"modes": ("pipe",), "cache": "rotated", "max_bytes": 1 << 30}
"""Fields of a sweep whose usual value on GPUs is another: those of nccl-tests, so that the numbers compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Everything `commbench sweep` was asked for. Sizes in bytes, times in seconds, shares below 1.

    `device` is "" until the back end is chosen. `paths` are those asked for, () for all; `routes` what a back end
    between endpoints then measures, as "peer:0,1" or "pinned:host,0", once it is known what this machine has.

    Raises:
        UsageError: for whatever makes no sense on any machine, naming the flag.
    """

    ops: tuple[str, ...]
    backend: str
    device: str = ""
    ranks: int | None = None
    dtype: str = "float32"
    redop: str = "sum"
    root: int = 0
    in_place: InPlace = "native"
    min_bytes: int = 8
    max_bytes: int = 64 << 20
    factor: float = 2.0
    step_bytes: int | None = None
    modes: tuple[str, ...] = ("sync",)
    cache: str = "hot"
    imbalance: float = 1.5
    pair: tuple[int, int] | None = None
    bidirectional: bool = False
    paths: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    runs: int = 3
    iters: int | None = None
    warmup_iters: int | None = None
    precision: float = 0.02
    budget: float = 5.0
    total_budget: float = 60.0
    check: bool = True
    seed: int = 1
    timeout: float = 60.0
    init_timeout: float = 600.0
    on_hang: str = "stop"
    nccl_lib: str = ""
    allow_shared_gpu: bool = False
    staged: bool = False
    thread_level: str = "single"
    loop: str = "auto"
    emulate: str = ""

    def __post_init__(self) -> None:
        for wrong, message, hint in self._complaints():
            if wrong:
                raise UsageError(message, hint)

    def _complaints(self) -> Iterator[tuple[bool, str, str]]:
        one_of = "one of: {}"
        yield (not self.ops, "--op names no operation", one_of.format(", ".join(OPERATIONS)))
        yield (self.min_bytes < 1, f"--min-bytes: {self.min_bytes} is below one byte", "use -b 8")
        yield (
            self.min_bytes > self.max_bytes,
            f"--min-bytes {self.min_bytes} is larger than --max-bytes {self.max_bytes}",
            "swap -b and -e",
        )
        yield (
            not (self.factor < math.inf and (self.step_bytes is not None or self.factor > 1)),
            f"--factor {self.factor:g} would never reach --max-bytes",
            "use -f 2, or -i for a fixed step",
        )
        yield (
            self.step_bytes is not None and self.step_bytes < 1,
            f"--step-bytes {self.step_bytes} would never reach --max-bytes",
            "use -i 1M, or -f 2 for a factor",
        )
        yield (self.size_count() > MAX_SIZES, f"the sweep has more than {MAX_SIZES} sizes", "raise -f or -i")
        yield (self.redop not in REDUCTIONS, f"--redop: unknown {self.redop!r}", one_of.format(", ".join(REDUCTIONS)))
        yield (self.dtype not in DTYPES, f"--dtype: unknown {self.dtype!r}", one_of.format(", ".join(DTYPES)))
        yield (
            not self.modes or not set(self.modes) <= set(MODES),
            f"--mode: {','.join(self.modes)!r} is not known",
            one_of.format(", ".join(MODES)) + ", or several: sync,pipe",
        )
        yield (
            self.in_place not in get_args(InPlace),
            f"--in-place: unknown {self.in_place!r}",
            "no, yes or both; left out, each operation as the back end has it",
        )
        yield (
            self.device not in ("", *DEVICES),
            f"--device: unknown {self.device!r}",
            one_of.format(", ".join(DEVICES)),
        )
        yield (self.cache not in CACHES, f"--cache: unknown {self.cache!r}", one_of.format(", ".join(CACHES)))
        yield (
            self.thread_level not in THREAD_LEVELS,
            f"--mpi-thread-level: unknown {self.thread_level!r}",
            one_of.format(", ".join(THREAD_LEVELS)),
        )
        yield (self.loop not in LOOPS, f"--loop: unknown {self.loop!r}", one_of.format(", ".join(LOOPS)))
        yield (self.on_hang not in ("stop", "skip"), f"--on-hang: unknown {self.on_hang!r}", "stop or skip")
        yield (self.ranks is not None and self.ranks < 1, f"--ranks {self.ranks}: at least 1", "use --ranks 2")
        yield (self.runs < 1, f"--runs {self.runs}: at least 1", "use --runs 3")
        yield (self.root < 0, f"--root {self.root}: not below 0", "use -r 0")
        yield (self.seed < 0, f"--seed {self.seed}: not below 0", "use --seed 1")
        yield (
            self.iters is not None and self.iters < 1,
            f"--iters {self.iters}: at least 1",
            "leave -n out to stop by precision",
        )
        yield (
            self.warmup_iters is not None and self.warmup_iters < 0,
            f"--warmup-iters {self.warmup_iters}: not below 0",
            "use -w 10",
        )
        yield (
            not 1 <= self.imbalance < math.inf,
            f"--imbalance {self.imbalance:g}: the hottest rank gets at least its share",
            "use 1 or more",
        )
        yield (not 0 < self.precision < 1, f"--precision {self.precision:g}: between 0% and 100%", "use --precision 2%")
        yield (not self.budget > 0, f"--budget {self.budget:g} s: more than 0", "use --budget 5s")
        yield (
            not self.total_budget > 0,
            f"--total-budget {self.total_budget:g} s: more than 0",
            "use --total-budget 60s",
        )
        yield (not self.timeout > 0, f"--timeout {self.timeout:g} s: more than 0", "use --timeout 60s")
        yield (
            not self.init_timeout > 0,
            f"--init-timeout {self.init_timeout:g} s: more than 0",
            "use --init-timeout 10m",
        )

    def path_label(self, path: str = "auto") -> str:
        """What the points call the interconnect: ranks on one GPU test answers, so no path is claimed for them."""
        return SAME_GPU if self.allow_shared_gpu else path

    def size_count(self) -> int:
        return sum(1 for _ in zip(self.sizes(), range(MAX_SIZES + 1), strict=False))

    def sizes(self) -> Iterator[int]:
        """The sizes asked for, before they are rounded to what an operation can split."""
        exact = float(self.min_bytes)
        while self.min_bytes <= exact <= self.max_bytes:
            yield int(exact)
            following = exact + self.step_bytes if self.step_bytes else exact * self.factor
            if following <= exact:
                return
            exact = following

    def points(self, ranks: int, able: Capabilities, path: str = "auto") -> tuple[list[Point], list[str]]:
        """Every point for `ranks` ranks, sizes ascending within a curve, and notes on sizes that were changed.

        Raises:
            UsageError: for what this back end or rank count cannot do.
        """
        points: list[Point] = []
        notes: list[str] = []
        for name in self.ops:
            self._refuse_what_is_not_there(name, ranks, able)
            sizes, note = self._rounded_sizes(name, ranks)
            notes += note
            points += [
                Point(
                    op=name,
                    in_place=in_place,
                    dtype=self.dtype,
                    redop=self.redop if OPERATIONS[name].reduces else None,
                    root=self.root if OPERATIONS[name].rooted else None,
                    bytes=size,
                    ranks=2 if able.paths else ranks,
                    backend=self.backend,
                    device=self.device or able.devices[0],
                    path=way,
                    mode=mode,
                    cache=self.cache if way != READ else "hot",
                    variant=variant,
                )
                for in_place in self._forms(name, able)
                for way, variant in self._ways(name, ranks, path)
                for mode in (self.modes if way != READ else ("sync",))
                for size in (sizes if way != READ else [READ_BYTES])
            ]
        return points, notes

    def _ways(self, name: str, ranks: int, path: str) -> list[tuple[str, str]]:
        """(path, variant) of the curves of an operation."""
        if not self.routes:
            return [(self.path_label(path), self._variant(name, ranks))]
        both = ";bidirectional" if self.bidirectional else ""
        routes = [route.partition(":") for route in self.routes]
        return [(way, f"pair={pair}{both}") for way, _, pair in routes]

    def _variant(self, name: str, ranks: int) -> str:
        words = []
        if name == "alltoallv":
            words.append(f"imbalance={self.imbalance:g}")
        if name == "p2p":
            pair = self.pair or (0, ranks - 1)
            words.append(f"pair={pair[0]},{pair[1]}")
            words += ["bidirectional"] if self.bidirectional else []
        return ";".join([*words, "staged"] if self.staged else words)

    def _forms(self, name: str, able: Capabilities) -> tuple[bool, ...]:
        forms = able.forms[name]
        if self.in_place == "native":
            return forms[:1]
        if self.in_place == "both":
            return tuple(sorted(forms))
        asked = self.in_place == "yes"
        if asked not in forms:
            only = "in place" if forms[0] else "out of place"
            raise UsageError(
                f"--in-place {self.in_place}: {self.backend} has {name} {only} only",
                "leave --in-place out to take each operation as the back end has it, or use --in-place both",
            )
        return (asked,)

    def _rounded_sizes(self, name: str, ranks: int) -> tuple[list[int], list[str]]:
        row, itemsize = OPERATIONS[name], DTYPES[self.dtype]
        sizes: list[int] = []
        raised = skipped = 0
        for asked in self.sizes():
            block = row.block_elements(asked, itemsize, ranks)
            size = row.bytes_of(max(block, 1), itemsize, ranks)
            if size in sizes:
                skipped += 1
                continue
            raised += block == 0
            sizes.append(size)
        notes = []
        if raised:
            notes.append(f"{name}: the smallest size was raised to {sizes[0]} bytes, one {self.dtype} a rank")
        if skipped:
            notes.append(f"{name}: {skipped} sizes were left out, they repeat others once rounded to whole elements")
        return sizes, notes

    def _refuse_what_is_not_there(self, name: str, ranks: int, able: Capabilities) -> None:
        row = OPERATIONS[name]
        if name not in able.forms:
            raise UsageError(f"{self.backend} has no {name}", f"it has {', '.join(able.forms)}")
        self._refuse_paths(name, ranks, able)
        if row.rooted and self.root >= ranks:
            raise UsageError(f"--root {self.root}: there are only {ranks} ranks", f"use a root below {ranks}")
        if name == "alltoallv" and ranks > 1 and self.imbalance > ranks:
            raise UsageError(
                f"--imbalance {self.imbalance:g}: with {ranks} ranks one can get at most {ranks} times its share",
                f"use --imbalance {ranks} or less",
            )
        if name in ("p2p", "sendrecv") and ranks == 1 and not able.paths:
            raise UsageError(f"--op {name} needs two ranks", "use --ranks 2")
        if self.device and self.device not in able.devices:
            raise UsageError(
                f"--device {self.device}: {self.backend} works on {', '.join(able.devices)}", "leave --device out"
            )
        if self.staged and (self.backend, self.device) != ("mpi", "cuda"):
            raise UsageError(
                "--staged copies GPU memory through the host around MPI", "add --backend mpi --device cuda"
            )
        if self.staged and name == "p2p" and "pipe" in self.modes:
            raise UsageError(
                "--staged: a p2p message waits for its copies, so --mode pipe has nothing back to back",
                "add --mode sync, or leave p2p out of --op",
            )
        if not set(self.modes) <= set(able.modes):
            raise UsageError(f"--mode: {self.backend} can do {', '.join(able.modes)}", f"use --mode {able.modes[0]}")
        if self.cache not in able.caches:
            raise UsageError(
                f"--cache: {self.backend} can do {', '.join(able.caches)}", f"use --cache {able.caches[0]}"
            )
        there = able.reduces.get(self.redop, frozenset()) if row.reduces else able.moves
        if self.dtype not in there:
            what = f"{name} with {self.redop}" if row.reduces else name
            known = f"it has {', '.join(d for d in DTYPES if d in there)}" if there else "it has no such reduction"
            raise UsageError(
                f"{self.backend} has no {what} of {self.dtype}",
                f"{known}; change --dtype" + (" or --redop" if row.reduces else ""),
            )

    def _refuse_paths(self, name: str, ranks: int, able: Capabilities) -> None:
        if not able.paths and self.paths:
            raise UsageError(
                f"--path {','.join(self.paths)}: {self.backend} takes the interconnect that it chooses itself",
                "leave --path out; --backend copies measures each way between GPUs, and between GPUs and the host",
            )
        if unknown := [path for path in self.paths if path not in able.paths]:
            raise UsageError(f"--path: unknown {unknown[0]!r}", f"one of: {', '.join(able.paths)}, or several of them")
        if name != "p2p" or self.pair is None or able.paths:
            return
        if self.pair[0] == self.pair[1] or min(self.pair) < 0:
            words = ",".join("host" if end == HOST else str(end) for end in self.pair)
            raise UsageError(f"--pair {words}: two different ranks", "use --pair 0,1")
        if max(self.pair) >= ranks:
            raise UsageError(f"--pair: there are only {ranks} ranks", f"use ranks below {ranks}")
