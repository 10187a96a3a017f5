"""ReFrame: an all-reduce on every system, held against limits, with alpha and bandwidth as performance variables.

    reframe -c reframe_commbench.py -r --performance-report

A system without limits of its own is measured and reported; one with limits fails where they are missed (exit 3).
Words like `variable` and `run_before` are known inside of a ReFrame class, without an import.
"""

import json

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class CommbenchAllreduce(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    backend = variable(str, value="auto")
    ranks = variable(int, value=2)
    max_size = variable(str, value="1M")
    more = variable(str, value="")
    # System to limits, as `commbench gate --expect` takes them.
    limits = {"daint:gpu": ["allreduce@1M busbw>=40GB/s", "allreduce alpha<=30us"]}

    executable = "commbench"

    @run_before("run")
    def set_options(self):
        options = ["sweep", "--op", "allreduce", "--backend", self.backend, "--ranks", str(self.ranks)]
        options += ["--max-bytes", self.max_size, *self.more.split(), "--json", "--no-plot", "--output", "sweep.jsonl"]
        for limit in self.limits.get(self.current_partition.fullname, []):
            options += ["--expect", f"'{limit}'"]
        self.executable_opts = options

    @sanity_function
    def is_complete_and_within_limits(self):
        return sn.assert_eq(self.job.exitcode, 0)

    @performance_function("us")
    def alpha(self):
        return self.fitted()["alpha_seconds"]["value"] * 1e6

    @performance_function("GB/s")
    def bandwidth(self):
        return self.fitted()["bandwidth_bytes_per_second"]["value"] / 1e9

    def fitted(self):
        """The fit in the JSON that the sweep printed."""
        with open(sn.evaluate(self.stdout)) as out:
            return json.load(out)["fit"]["curves"][0]
