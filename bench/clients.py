#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""UCX and Open MPI over Weir and over TCP, taken in turn on the same two cores in one run; medians and ratios.

Every round takes each figure once, Weir's and TCP's by turns, so that a change of the machine's mood meets both. The
programs are Debian's own, the same on both sides but for the transport, and pinned: one to core 0, the other to core 1.

  bench/clients.py [--rounds 7] [--build build] [--fabric examples/pair.yaml] [--fifo]

--fifo (root) runs both sides with real-time priority, for machines that others use at the same time.
Exit code 1 if a figure is missing or misses its goal.
"""
import re
import statistics
import subprocess
import time

from side_by_side import MIB, Rig, main

SIDES = {
    "weir": {"UCX_TLS": "rc,self", "UCX_NET_DEVICES": "weir0:1"},
    "tcp": {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"},
}


class Bench(Rig):
    first_port = 22000

    def __init__(self, options, folder):
        super().__init__(options, folder)
        self.mpi_program = self.build / "tests/clients/programs/mpi_check_openmpi"
        self.env["UCX_WARN_UNUSED_ENV_VARS"] = "n"

    def ucx(self, side, test, size, count):
        """The median of the client's last line: microseconds one way, or 10^6 bytes/s and messages/s."""
        self.port += 1
        env = dict(self.env, **SIDES[side])
        pinned = ["taskset", "-c"]
        server = subprocess.Popen([*pinned, "0", *self.prefix, *self.on("h0"), "ucx_perftest", "-p", str(self.port)],
                                  env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        client = subprocess.Popen([*pinned, "1", *self.prefix, *self.on("h1"), "ucx_perftest", "127.0.0.1", "-p",
                                   str(self.port), "-t", test, "-s", str(size), "-n", str(count), "-w", "200", "-f",
                                   "-v"], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        fields = (self.output(client).strip().splitlines() or [""])[-1].split(",")
        self.output(server, 5)
        if len(fields) < 6 or not all(re.fullmatch(r"[\d.]+", field) for field in fields[:6]):
            return None
        return [float(field) for field in fields]

    def mpi(self, side):
        """Open MPI binds each of two ranks to a core by itself."""
        transport = {
            "weir": ["--mca", "pml", "ucx", "-x", "UCX_TLS=rc,self", "-x", "UCX_NET_DEVICES=weir0:1"],
            "tcp": ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"],
        }[side]
        process = subprocess.Popen(["mpirun.openmpi", "--allow-run-as-root", "-n", "2", "--bind-to", "core", *transport,
                                    *self.prefix, str(self.bin / "weir"), "run", "--", str(self.mpi_program), "time",
                                    "8", "20000"], env=self.env, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL)
        found = re.search(r"allreduce_us ([\d.]+)", self.output(process))
        if found:
            self.note(f"{side}_allreduce_us", float(found[1]))

    def round(self):
        for side in SIDES:
            # Columns: iterations or 50th percentile first, then averages (see ucx_perftest -v).
            if fields := self.ucx(side, "tag_lat", 8, 20000):
                self.note(f"{side}_tag_us", fields[1])
        for side in SIDES:
            if fields := self.ucx(side, "tag_bw", MIB, 1000):
                self.note(f"{side}_tag_mb", fields[5])
        for side in SIDES:
            self.mpi(side)


def table(samples):
    median = {key: statistics.median(values) for key, values in samples.items()}
    missed = []
    print(f"{'figure':<38}{'Weir':>10}{'TCP':>10}{'ratio':>10}")
    rows = (("8 B tagged message over UCX, us one way", "tag_us", 0.25, False),
            ("1 MiB tagged messages over UCX, MB/s", "tag_mb", 2, True),
            ("8 B all-reduce of 2 ranks, Open MPI, us", "allreduce_us", 0.4, False))
    for name, key, goal, more in rows:
        if f"weir_{key}" not in median or f"tcp_{key}" not in median:
            print(f"{name:<38}no figure: that program did not end in time or is not installed")
            missed.append(name)
            continue
        ours, other = median[f"weir_{key}"], median[f"tcp_{key}"]
        good = ours >= goal * other if more else ours <= goal * other
        if not good:
            missed.append(name)
        print(f"{name:<40}{ours:>8.2f}{other:>10.2f}{ours / other:>8.2f} x  goal {'>=' if more else '<='} {goal} x  "
              f"{'ok' if good else 'missed'}")
    return missed


main(Bench, table, __doc__)
