"""Control groups as containers, batch systems and plain machines mount them."""

from pathlib import Path

import pytest

from commbench.measure.cgroup import Limits, limits

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert limits(tmp_path) == Limits(cpu_quota=None, cpus=None, memory_bytes=None, memory_left_bytes=None)


def test_the_tightest_level_holds_in_version_2(tmp_path: Path) -> None:
    """A job of 4 CPUs and 8 GiB, in it a step of 6 CPUs and 2 GiB of which 1.5 GiB are used."""
    top = "sys/fs/cgroup"
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job_7/step_0\n",
            "proc/self/mountinfo": V2,
            f"{top}/job_7/cpu.max": "400000 100000\n",
            f"{top}/job_7/memory.max": f"{8 << 30}\n",
            f"{top}/job_7/memory.current": f"{2 << 30}\n",
            f"{top}/job_7/step_0/cpu.max": "600000 100000\n",
            f"{top}/job_7/step_0/memory.max": f"{2 << 30}\n",
            f"{top}/job_7/step_0/memory.current": f"{3 << 29}\n",
            f"{top}/job_7/step_0/cpuset.cpus.effective": "8-11\n",
        },
    )
    assert limits(tmp_path) == Limits(cpu_quota=4.0, cpus="8-11", memory_bytes=2 << 30, memory_left_bytes=1 << 29)


def test_max_is_no_limit(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
        },
    )
    assert limits(tmp_path) == Limits(cpu_quota=None, cpus=None, memory_bytes=None, memory_left_bytes=None)


V1 = (
    "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct ro shared:7 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:31 {top} /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 {top} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)


@pytest.mark.parametrize(
    ("top", "inside"),
    [
        ("/docker/5f", ""),  # a container: only its own group is mounted, under the host's name
        ("/", "/docker/5f"),  # the host's tree is mounted
        ("/docker/5f0", ""),  # a name that only begins like another
    ],
)
def test_version_1_is_found_in_a_container_and_on_a_host(tmp_path: Path, top: str, inside: str) -> None:
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/5f\n3:cpuset:/docker/5f\n2:cpu,cpuacct:/docker/5f\n0::/docker/5f\n",
            "proc/self/mountinfo": V1.format(top=top),
            f"sys/fs/cgroup/cpu,cpuacct{inside}/cpu.cfs_quota_us": "150000\n",
            f"sys/fs/cgroup/cpu,cpuacct{inside}/cpu.cfs_period_us": "100000\n",
            f"sys/fs/cgroup/cpuset{inside}/cpuset.cpus": "0-3\n",
            f"sys/fs/cgroup/memory{inside}/memory.limit_in_bytes": f"{1 << 30}\n",
            f"sys/fs/cgroup/memory{inside}/memory.usage_in_bytes": f"{1 << 29}\n",
            f"sys/fs/cgroup/memory{inside}/memory.stat": f"inactive_file 1\ntotal_inactive_file {1 << 28}\n",
        },
    )
    assert limits(tmp_path) == Limits(cpu_quota=1.5, cpus="0-3", memory_bytes=1 << 30, memory_left_bytes=3 << 28)


def test_version_1_without_limits_writes_minus_one_and_a_huge_number(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n2:cpu,cpuacct:/\n",
            "proc/self/mountinfo": V1.format(top="/"),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert limits(tmp_path) == Limits(cpu_quota=None, cpus=None, memory_bytes=None, memory_left_bytes=None)


def test_a_controller_of_version_1_counts_where_both_versions_are_mounted(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/\n0::/\n",
            "proc/self/mountinfo": V1.format(top="/") + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/unified/cpu.max": "100000 100000\n",
        },
    )
    assert limits(tmp_path).cpu_quota == 2.0


def test_a_group_outside_of_what_is_mounted_takes_the_top(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../other\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpu.max": "300000 100000\n",
        },
    )
    assert limits(tmp_path).cpu_quota == 3.0
