"""Which libnccl, what steers it, and what its numbers mean; the calls themselves are in the contract suite."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from commbench.backends import nccl_library
from commbench.backends.base import World
from commbench.backends.nccl_library import dotted, find, settings, share_a_gpu
from commbench.errors import UnavailableError
from tests import doubles


@pytest.mark.parametrize(
    # NCCL_VERSION in nccl.h: up to 2.8 the minor number has one digit of its own.
    ("code", "text"),
    [(2708, "2.7.8"), (2804, "2.8.4"), (20909, "2.9.9"), (21805, "2.18.5"), (23007, "2.30.7"), (23203, "2.32.3")],
)
def test_a_version_code_is_read_as_nccl_writes_it(code: int, text: str) -> None:
    assert dotted(code) == text


def test_configuration_files_are_read_in_nccls_order(tmp_path: Path) -> None:
    users, system = tmp_path / "users.conf", tmp_path / "system.conf"
    users.write_text("NCCL_ALGO=Ring\n# NCCL_PROTO=LL\nNCCL_DEBUG=INFO\r\nnonsense\nPATH=/tmp\n")
    system.write_text("NCCL_ALGO=Tree\nNCCL_NET=Socket\n")

    # The first that sets a variable wins, and the environment before both.
    found = settings({"NCCL_DEBUG": "WARN"}, (str(users), str(system), str(tmp_path / "missing")))
    assert found == {"NCCL_ALGO": "Ring", "NCCL_NET": "Socket"}
    assert settings({"NCCL_CONF_FILE": str(users)})["NCCL_ALGO"] == "Ring"


def test_the_file_asked_for_is_taken_and_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2.99"
    file.touch()
    assert find(str(file)) == str(file)
    with pytest.raises(UnavailableError, match="no such file") as caught:
        find(str(tmp_path))
    assert "not its folder" in caught.value.hint


def test_a_folder_that_may_not_be_entered_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    # Path.is_file would raise; as root, who may enter every folder, the refusal of stat is made up.
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(nccl_library.os, "stat", refuse)
    with pytest.raises(UnavailableError, match="no such file"):
        find("/root/secret/libnccl.so.2")


@doubles.needs_compiler
def test_the_file_that_is_measured_is_known_by_any_name(tmp_path: Path) -> None:
    # Whatever has ncclGetVersion: a library in a file that is not called libnccl.
    file = tmp_path / "my-build.so"
    file.write_bytes(doubles.library(doubles.built()).read_bytes())
    code = (
        "import ctypes, sys; from commbench.backends.nccl_library import file_of, load\n"
        f"ctypes.CDLL({str(doubles.built() / 'cuda/libcuda.so.1')!r})\n"
        "print(file_of(load(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(file)


def test_without_any_the_loader_is_asked_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_library.importlib.util, "find_spec", lambda _: None)
    assert find() == "libnccl.so.2"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (23003, {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "4"}),
        (22907, {"NCCL_HOSTID": "commbench-3", "NCCL_MAX_CTAS": "4"}),
    ],
)
def test_sharing_a_gpu_sets_what_that_version_understands_and_leaves_what_the_user_set(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: dict[str, str]
) -> None:
    environment = {"NCCL_MAX_CTAS": "4"}
    monkeypatch.setattr(nccl_library.os, "environ", environment)
    monkeypatch.setattr(nccl_library, "version_of", lambda _: code)
    share_a_gpu(ctypes.CDLL(None), World(3, 4, 3, 4, "parent"))
    assert environment == expected


def test_a_library_tells_its_hash_and_the_cuda_it_was_built_for(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    # Across the border of two pieces of 4 MiB, which must not hide it.
    text = b"NCCL version 2.30.7+cuda12.9\0"
    file.write_bytes(b"x" * ((1 << 22) - 10) + text + b"y" * 100)
    found = nccl_library.facts_of(str(file))
    assert found["nccl_built"] == "2.30.7+cuda12.9"
    assert len(found["nccl_sha256"]) == 16
    assert nccl_library.facts_of(str(tmp_path / "none")) == {}
