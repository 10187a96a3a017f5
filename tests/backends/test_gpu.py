"""Who gets which GPU, and the clock of events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commbench.backends import gpu
from commbench.backends.base import World
from commbench.backends.gpu import assign, dotted, explained, smallest_step
from commbench.errors import UsageError


class Meeting:
    """Control of a job in which `others` said what ranks say to `assign`; this is rank 0."""

    def __init__(self, *others: list[Any]) -> None:
        self.others = others

    def gather(self, value: Any) -> list[Any] | None:
        return [value, *self.others]

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        return value


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver whose GPU k is GPU-k, on host "a"."""
    monkeypatch.setattr(gpu, "load_driver", lambda: None)
    monkeypatch.setattr(gpu, "identity", lambda _driver, index: (f"GPU-{index}", "H100"))
    monkeypatch.setattr(gpu.socket, "gethostname", lambda: "a")


FIRST = World(0, 2, 0, 2, "parent")


def test_a_rank_takes_the_gpu_of_its_place_on_the_node() -> None:
    second = World(0, 2, 1, 2, "parent")
    assert assign(second, Meeting(["a", "GPU-0", "H100", 2]), 2, allow_shared=False).index == 1


def test_the_same_uuid_on_another_host_is_another_gpu() -> None:
    found = assign(FIRST, Meeting(["b", "GPU-0", "H100", 1]), 1, allow_shared=False)
    assert (found.index, found.sharing, found.notes) == (0, 1, ())


def test_two_ranks_on_one_gpu_are_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match="2 ranks on a, but only 1 GPU there") as caught:
        assign(FIRST, Meeting(["a", "GPU-0", "H100", 1]), 1, allow_shared=False)
    assert caught.value.hint.startswith("--allow-shared-gpu")

    four = [["a", f"GPU-{k % 2}", "H100", 2] for k in (1, 2, 3)]
    with pytest.raises(UsageError, match="4 ranks on a, but only 2 GPUs there") as caught:
        assign(World(0, 4, 0, 4, "parent"), Meeting(*four), 2, allow_shared=False)
    assert caught.value.hint.startswith("use --ranks 2")


def test_sharing_is_counted_per_gpu_and_must_be_real() -> None:
    assert assign(FIRST, Meeting(["a", "GPU-0", "H100", 1]), 1, allow_shared=True).sharing == 2
    with pytest.raises(UsageError, match="every rank has a GPU of its own"):
        assign(FIRST, Meeting(["a", "GPU-1", "H100", 2]), 2, allow_shared=True)


def test_mixed_models_and_slices_are_noted() -> None:
    found = assign(FIRST, Meeting(["a", "MIG-7", "L4", 1]), 2, allow_shared=False)
    assert found.notes[0] == "different GPUs in one run: 1 x H100, 1 x L4"
    assert found.notes[1].startswith("MIG instances")


def test_the_step_of_a_clock_is_its_smallest_difference_or_what_cuda_documents() -> None:
    assert smallest_step(np.array([1.0e-6, 1.5e-6, 3.0e-6])) == pytest.approx(0.5e-6)
    assert smallest_step(np.full(10, 2e-6)) == 0.5e-6


def test_versions_and_errors_are_in_words() -> None:
    assert (dotted(12040), dotted(13000), dotted(11080)) == ("12.4", "13.0", "11.8")
    assert "out of memory" in explained(2, "cudaErrorMemoryAllocation").message
    assert explained(77, "something").message == "CUDA: something"
