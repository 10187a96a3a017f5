"""Facts are read from small trees that stand for other machines; the expected values are worked out by hand."""

import json
import os
from pathlib import Path

import pytest

from commbench.measure import devices, machine


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture
def epyc(tmp_path: Path) -> Path:
    """Two sockets of two cores of two threads: CPUs 0, 1 and 4, 5 on socket 0, the others on socket 1."""
    cpuinfo = (
        "processor\t: {cpu}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654 96-Core Processor\n"
        "microcode\t: 0xa101144\nflags\t\t: fpu vme sse2 avx2\n\n"
    )
    cpu = "sys/devices/system/cpu"
    files = {
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "etc/os-release": 'NAME="Rocky Linux"\nPRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"\nHOME_URL="https://x"\n',
        "proc/cpuinfo": "".join(cpuinfo.format(cpu=number) for number in range(8)),
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz ro secret=1 isolcpus=2-3 nohz_full=2-3 nosmt\n",
        "proc/loadavg": "1.25 0.80 0.60 3/812 4711\n",
        "proc/meminfo": "MemTotal:       65536 kB\nMemFree:  100 kB\nMemAvailable:   32768 kB\n",
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-1,4-5\nMems_allowed_list:\t0-1\n",
        "proc/self/stat": "77 (a (b) c) R 1 77 77 0 -1 4194304 1 2 3 4 5 6 7 8 20 -5 1 0 9 10 11 "
        + "0 " * 13
        + "17 4 0 2 0\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "proc/sys/kernel/random/boot_id": "fbb0afe8-3a11-41fe-958b-013fe3ce6a51\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H100 PCIe\nGPU UUID: \t GPU-aaaa\n",
        "proc/driver/nvidia/gpus/0000:41:00.0/information": "Model: \t\t NVIDIA H100 PCIe\nGPU UUID: \t GPU-bbbb\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "sys/class/dmi/id/sys_vendor": "Supermicro\n",
        "sys/class/dmi/id/product_name": "AS-2125HS-TNR\n",
        f"{cpu}/online": "0-7\n",
        f"{cpu}/smt/active": "1\n",
        f"{cpu}/cpufreq/boost": "0\n",
        f"{cpu}/vulnerabilities/meltdown": "Not affected\n",
        f"{cpu}/vulnerabilities/spectre_v2": "Mitigation: Retpolines; BHI: Vulnerable\n",
        f"{cpu}/vulnerabilities/spec_rstack_overflow": "Vulnerable: Safe RET, no microcode\n",
        f"{cpu}/cpu0/cpufreq/scaling_driver": "acpi-cpufreq\n",
        f"{cpu}/cpu0/cpufreq/scaling_min_freq": "1500000\n",
        f"{cpu}/cpu0/cpufreq/scaling_max_freq": "2400000\n",
        f"{cpu}/cpu0/cpufreq/scaling_cur_freq": "2396123\n",
        "sys/class/net/lo/operstate": "unknown\n",
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/eth0/speed": "100000\n",
        "sys/class/net/eth0/mtu": "9000\n",
        "sys/class/net/eth0/device/vendor": "0x15b3\n",
        "sys/class/net/eth1/operstate": "down\n",
        "sys/class/net/eth1/speed": "-1\n",
        "sys/class/net/eth1/mtu": "1500\n",
        "sys/class/net/eth1/device/vendor": "0x15b3\n",
        "sys/class/net/veth12ab/operstate": "up\n",
        "sys/class/net/docker0/operstate": "down\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    }
    for number in range(8):
        here = f"{cpu}/cpu{number}"
        files[f"{here}/topology/physical_package_id"] = str(number // 2 % 2)
        files[f"{here}/topology/core_cpus_list"] = f"{number % 4},{number % 4 + 4}"
        files[f"{here}/cpufreq/scaling_governor"] = "performance" if number else "powersave"
    for index, (level, kind, size, shared) in enumerate(
        [
            (1, "Data", "32K", "0,4"),
            (1, "Instruction", "32K", "0,4"),
            (2, "Unified", "1024K", "0,4"),
            (3, "Unified", "32M", "0-1,4-5"),
        ]
    ):
        here = f"{cpu}/cpu0/cache/index{index}"
        files |= {
            f"{here}/level": str(level),
            f"{here}/type": kind,
            f"{here}/size": size,
            f"{here}/shared_cpu_list": shared,
        }
    for node, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7")):
        files[f"sys/devices/system/node/node{node}/cpulist"] = cpus
        files[f"sys/devices/system/node/node{node}/meminfo"] = f"Node {node} MemTotal:       {32768 + node} kB\n"
    return lay(tmp_path, files)


def test_a_two_socket_machine_is_described_in_base_units(epyc: Path) -> None:
    facts = machine.node_facts(epyc)

    assert facts["system"] == "Rocky Linux 9.4 (Blue Onyx)"
    assert facts["cpu_model"] == "AMD EPYC 9654 96-Core Processor"
    assert (facts["sockets"], facts["cores"], facts["cpus"], facts["smt"]) == (2, 4, 8, True)
    assert facts["microcode"] == "0xa101144"
    assert facts["last_level_cache_bytes"] == 33554432
    assert facts["memory_bytes"] == 67108864
    assert facts["memory_available_bytes"] == 33554432
    assert facts["huge_pages"] == "madvise"
    assert facts["numa_balancing"] is True
    assert facts["clocksource"] == "tsc"
    assert (facts["load"], facts["runnable"]) == (1.25, 3)
    assert facts["boot_id"] == "fbb0afe8-3a11-41fe-958b-013fe3ce6a51"


def test_every_fact_can_be_written_as_json(epyc: Path) -> None:
    facts = machine.node_facts(epyc)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_frequencies_are_hertz_and_mixed_governors_are_all_named(epyc: Path) -> None:
    facts = machine.node_facts(epyc)

    assert facts["governor"] == "performance,powersave"
    assert facts["frequency_driver"] == "acpi-cpufreq"
    assert facts["frequency_min_hertz"] == 1_500_000_000
    assert facts["frequency_max_hertz"] == 2_400_000_000
    assert facts["frequency_current_hertz"] == 2_396_123_000
    assert facts["boost"] is False


@pytest.mark.parametrize(("no_turbo", "boost"), [("0", True), ("1", False)])
def test_intels_no_turbo_is_read_the_other_way_round(epyc: Path, no_turbo: str, boost: bool) -> None:
    lay(epyc, {"sys/devices/system/cpu/intel_pstate/no_turbo": no_turbo})
    assert machine.node_facts(epyc)["boost"] is boost


def test_caches_tell_how_many_cpus_share_one(epyc: Path) -> None:
    assert machine.caches(epyc) == [
        {"level": 1, "type": "data", "bytes": 32768, "shared_by": 2},
        {"level": 1, "type": "instruction", "bytes": 32768, "shared_by": 2},
        {"level": 2, "type": "unified", "bytes": 1048576, "shared_by": 2},
        {"level": 3, "type": "unified", "bytes": 33554432, "shared_by": 4},
    ]


def test_a_flaw_that_is_worked_around_in_part_counts_as_mitigated(epyc: Path) -> None:
    assert machine.node_facts(epyc)["mitigations"] == {
        "mitigated": ["spectre_v2"],
        "vulnerable": ["spec_rstack_overflow"],
    }


def test_of_the_kernels_command_line_only_what_matters_is_kept(epyc: Path) -> None:
    assert machine.node_facts(epyc)["boot_options"] == {"isolcpus": "2-3", "nohz_full": "2-3", "nosmt": True}


def test_numa_nodes_have_cpus_and_memory(epyc: Path) -> None:
    assert machine.numa_nodes(epyc) == [
        {"node": 0, "cpus": "0-1,4-5", "memory_bytes": 32768 * 1024},
        {"node": 1, "cpus": "2-3,6-7", "memory_bytes": 32769 * 1024},
    ]


def test_networks_are_names_and_rates_without_the_ends_of_containers(epyc: Path) -> None:
    assert devices.networks(epyc) == [
        {"name": "eth0", "kind": "ethernet", "state": "up", "bytes_per_second": 12.5e9, "mtu": 9000},
        {"name": "eth1", "kind": "ethernet", "state": "down", "bytes_per_second": None, "mtu": 1500},
        {"name": "mlx5_0:1", "kind": "infiniband", "state": "active", "bytes_per_second": 50e9, "mtu": None},
    ]


def test_gpus_are_seen_through_the_kernel_driver(epyc: Path) -> None:
    facts = machine.node_facts(epyc)
    assert facts["gpus"] == ["NVIDIA H100 PCIe", "NVIDIA H100 PCIe"]
    assert facts["gpu_driver"] == "535.129.03"


def test_the_machine_id_itself_is_never_written(epyc: Path) -> None:
    facts = machine.node_facts(epyc)
    assert "0123456789abcdef" not in json.dumps(facts)
    assert len(facts["machine_id"]) == 16
    assert facts["machine_id"] == machine.node_facts(epyc)["machine_id"]


def test_a_resume_needs_the_same_cpu_model_and_gpus(epyc: Path) -> None:
    assert machine.key_facts(machine.node_facts(epyc)) == {
        "cpu_model": "AMD EPYC 9654 96-Core Processor",
        "gpus": ["NVIDIA H100 PCIe", "NVIDIA H100 PCIe"],
    }


def test_a_process_bound_to_one_socket_is_pinned(epyc: Path) -> None:
    assert machine.process_facts(epyc) == {
        "pid": os.getpid(),
        "cpus": "0-1,4-5",
        "pinned": True,
        "numa_nodes": [0],
        "memory_nodes": "0-1",
        "policy": "round-robin",
        "nice": -5,
    }


def test_a_process_that_may_run_anywhere_is_not_pinned(epyc: Path) -> None:
    lay(epyc, {"proc/self/status": "Cpus_allowed_list:\t0-7\n"})
    facts = machine.process_facts(epyc)
    assert facts["pinned"] is False
    assert facts["numa_nodes"] == [0, 1]


def test_usable_cores_follow_the_affinity(epyc: Path) -> None:
    assert machine.usable_cores(epyc) == 4


CONTAINER = {
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n",
    "sys/fs/cgroup/cpu.max": "250000 100000\n",
    "sys/fs/cgroup/cpuset.cpus.effective": "0-1,4-5\n",
    "sys/fs/cgroup/memory.max": "16777216\n",
    "sys/fs/cgroup/memory.current": "12582912\n",
    "sys/fs/cgroup/memory.stat": "anon 8388608\nfile 4194304\ninactive_file 2097152\nactive_file 2097152\n",
}


def test_a_container_is_described_by_what_it_may_use(epyc: Path) -> None:
    lay(epyc, CONTAINER)
    facts = machine.node_facts(epyc)

    assert facts["cgroup_cpu_quota"] == 2.5
    assert facts["cgroup_cpus"] == "0-1,4-5"
    assert facts["cgroup_memory_bytes"] == 16 << 20
    # 16 MiB less 12 MiB in use, of which 2 MiB are file cache that would be given back.
    assert machine.available_memory_bytes(epyc) == 6 << 20
    assert machine.usable_cores(epyc) == 2


def test_a_process_on_all_cpus_of_its_container_is_not_pinned(epyc: Path) -> None:
    lay(epyc, CONTAINER)
    assert machine.process_facts(epyc)["pinned"] is False


@pytest.mark.parametrize("quota", ["50000 100000", "0 100000"])
def test_even_half_a_cpu_is_one_usable_core(epyc: Path, quota: str) -> None:
    lay(epyc, CONTAINER | {"sys/fs/cgroup/cpu.max": quota})
    assert machine.usable_cores(epyc) == 1


def test_a_machine_where_nothing_is_readable_has_facts_that_are_none(tmp_path: Path) -> None:
    facts = machine.node_facts(tmp_path)

    for name in ("machine_id", "boot_id", "cpu_model", "sockets", "cores", "smt", "governor", "boost", "memory_bytes"):
        assert facts[name] is None
    for name in ("virtual", "hypervisor", "load", "runnable", "cgroup_cpu_quota", "last_level_cache_bytes"):
        assert facts[name] is None
    for name in ("caches", "numa_nodes", "gpus", "networks"):
        assert facts[name] == []
    assert facts["cpus"] == os.cpu_count()
    assert machine.available_memory_bytes(tmp_path) is None
    assert machine.usable_cores(tmp_path) == os.cpu_count()
    assert machine.process_facts(tmp_path)["pinned"] is None


def test_the_same_facts_are_named_whatever_can_be_read(epyc: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert machine.node_facts(epyc).keys() == machine.node_facts(tmp_path_factory.mktemp("empty")).keys()


def test_facts_that_are_not_text_or_not_numbers_are_none(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/meminfo": "MemTotal: lots\n", "proc/loadavg": "?\n", "sys/devices/system/cpu/online": "all\n"})
    (tmp_path / "proc/cpuinfo").write_bytes(b"\xff\xfe\x00model name")
    (tmp_path / "sys/devices/system/cpu/smt/active").mkdir(parents=True)
    facts = machine.node_facts(tmp_path)
    assert (facts["memory_bytes"], facts["load"], facts["cpu_model"], facts["smt"]) == (None, None, None, None)


@pytest.mark.parametrize(
    ("files", "virtual", "hypervisor"),
    [
        ({"proc/cpuinfo": "flags : fpu hypervisor\n"}, True, None),
        ({"proc/cpuinfo": "flags : hypervisor\n", "sys/class/dmi/id/sys_vendor": "QEMU\n"}, True, "QEMU"),
        ({"proc/cpuinfo": "Features : fp asimd\n", "sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, True, "Amazon EC2"),
        (
            {
                "proc/cpuinfo": "Features : fp asimd\n",
                "sys/class/dmi/id/sys_vendor": "Amazon EC2\n",
                "sys/class/dmi/id/product_name": "c7g.metal\n",
            },
            False,
            None,
        ),
        ({"proc/cpuinfo": "Features : fp\n", "sys/class/dmi/id/sys_vendor": "HPE\n"}, False, None),
        ({"proc/cpuinfo": "Features : fp\n"}, None, None),
        ({"sys/hypervisor/type": "xen\n"}, True, "xen"),
    ],
)
def test_a_virtual_machine_is_told_from_its_cpu_flags_or_its_maker(
    tmp_path: Path, files: dict[str, str], virtual: bool | None, hypervisor: str | None
) -> None:
    lay(tmp_path, files)
    assert machine.is_virtual(tmp_path) is virtual
    assert machine.node_facts(tmp_path)["hypervisor"] == hypervisor


def test_an_arm_cpu_without_a_model_name_is_told_by_its_part_number(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"})
    assert machine.node_facts(tmp_path)["cpu_model"] == "implementer 0x41 part 0xd40"


def test_an_old_kernel_tells_cores_by_their_siblings(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    lay(
        tmp_path,
        {f"{cpu}/online": "0-3", **{f"{cpu}/cpu{n}/topology/thread_siblings_list": f"{n % 2}" for n in range(4)}},
    )
    assert machine.node_facts(tmp_path)["cores"] == 2


def test_settings_of_communication_libraries_are_kept() -> None:
    settings = {
        "NCCL_ALGO": "Ring",
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",
        "I_MPI_FABRICS": "shm",
        "OMPI_MCA_btl": "self,sm",
        "UCX_TLS": "tcp,self",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "SLURM_JOB_NUM_NODES": "2",
    }
    assert machine.environment_facts(settings | {"HOME": "/root", "AWS_REGION": "eu", "PYTHONPATH": "/x"}) == settings


def test_values_that_may_be_secrets_are_never_written() -> None:
    secrets = {
        "NCCL_API_KEY": "s3cret",
        "SLURM_JWT": "s3cret",
        "UCX_TOKEN": "s3cret",
        "OMPI_MCA_sec_secret": "s3cret",
        "I_MPI_PASSWORD": "s3cret",
        "TORCH_CREDENTIALS": "s3cret",
        "NCCL_NET_PLUGIN": "https://me:s3cret@example.org",
    }
    facts = machine.environment_facts(secrets)
    assert facts == dict.fromkeys(secrets, "(hidden)")


def test_what_launchers_tell_each_rank_is_no_setting() -> None:
    noise = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_UNIVERSE_SIZE": "2",
        "OMPI_ARGV": "-m commbench",
        "OMPI_FILE_LOCATION": "/tmp/ompi.1",
        "OMPI_MCA_orte_hnp_uri": "12.0;tcp://10.0.0.1:1",
        "OMPI_MCA_ess_base_vpid": "1",
        "OMPI_MCA_orte_precondition_transports": "92a1-77f0",
        "PMIX_SERVER_URI41": "prterun-vm@0.0;tcp4://127.0.0.1:1",
        "PMI_RANK": "0",
        "SLURM_PROCID": "3",
        "SLURM_SRUN_COMM_PORT": "4000",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
        "SLURM_STEP_ID": "4",
        "SLURM_JOB_USER": "ann",
        "MPICH_INTERFACE_HOSTNAME": "10.0.0.1",
    }
    assert machine.environment_facts(noise) == {}


def test_facts_of_the_machine_that_runs_this_test_are_plausible() -> None:
    facts = machine.node_facts()
    assert facts["hostname"]
    assert facts["cpus"] >= machine.usable_cores() >= 1
    json.dumps([facts, machine.process_facts(), machine.environment_facts()], allow_nan=False)
