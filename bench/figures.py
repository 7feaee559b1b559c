#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weir and TCP, taken in turn on the same two cores in one run; medians and ratios.

Every round takes each figure once, Weir's and the other side's by turns, so that a change of the machine's mood meets
both. Programs are pinned: server to core 0, client to core 1. Latencies are one way; bandwidth is in GB/s (10^9 bytes).

  bench/figures.py [--rounds 7] [--build build] [--fabric examples/pair.yaml] [--fifo]

Latencies are judged against the bare flag ping-pong of the same second: virtual cores lie now near, now far from each
other, and a line takes four times as long. So each is taken between two of the flag, and again if those two disagree.

--fifo (root) runs both sides with real-time priority, for machines that others use at the same time.
Exit code 1 if a figure is missing or misses its goal.
"""
import re
import statistics
import subprocess
import time

from side_by_side import MIB, Rig, main


class Bench(Rig):
    first_port = 21000
    tries = 6

    def start(self, command, core, **kwargs):
        return subprocess.Popen(["taskset", "-c", str(core), *self.prefix, *command], text=True, env=self.env,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kwargs)

    def perftest(self, key, column, scale, program, *arguments):
        """Runs a perftest pair on h0 and h1 and keeps the number in `column` of the client's row."""
        self.port += 1
        command = [program, *arguments, "-p", str(self.port)]
        server = self.start([*self.on("h0"), *command], 0)
        time.sleep(0.4)
        output = self.output(self.start([*self.on("h1"), *command, "127.0.0.1"], 1))
        self.output(server, 5)
        rows = [line.split() for line in output.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]
        if rows:
            self.note(key, float(rows[-1][column]) * scale)

    def latency(self, key, program):
        """One sample of `key`, with the flag's and TCP's of the same second as `key`_flag and `key`_tcp."""
        for _ in range(self.tries):
            before = self.yardsticks()
            self.perftest("latency", 4, 1, program, "-s", "8", "-n", "20000")
            after = self.yardsticks()
            value = self.samples.pop("latency", [None])[0]
            flags = sorted([before["flag_us"], after["flag_us"]])
            if value is not None and flags[1] <= 1.5 * flags[0]:
                self.note(key, value)
                for yardstick in ("flag", "tcp"):
                    self.note(f"{key}_{yardstick}", (before[f"{yardstick}_us"] + after[f"{yardstick}_us"]) / 2)
                return

    def yardsticks(self):
        output = self.output(subprocess.Popen([*self.prefix, str(self.bin / "loopback"), "0"], text=True,
                                              stdout=subprocess.PIPE))
        return {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)", output)}

    def loopback(self, size):
        output = self.output(subprocess.Popen([*self.prefix, str(self.bin / "loopback"), str(size)], text=True,
                                              stdout=subprocess.PIPE))
        for name, value in re.findall(r"(\w+) ([\d.]+)", output):
            key = f"{name}_{size}" if name.endswith("per_second") else name
            self.note(key, float(value))

    def ucx(self):
        self.port += 1
        env = dict(self.env, UCX_TLS="tcp,self", UCX_NET_DEVICES="lo")
        server = subprocess.Popen(["taskset", "-c", "0", *self.prefix, "ucx_perftest", "-p", str(self.port)], env=env,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.4)
        client = subprocess.Popen(["taskset", "-c", "1", *self.prefix, "ucx_perftest", "127.0.0.1", "-p",
                                   str(self.port), "-t", "tag_lat", "-s", "8", "-n", "20000", "-f", "-v"], env=env,
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        fields = self.output(client).strip().splitlines()[-1:]
        fields = fields[0].split(",") if fields else []
        self.output(server, 5)
        if len(fields) > 2 and re.fullmatch(r"[\d.]+", fields[1]):
            self.note("ucx_us", float(fields[1]))

    def iperf(self):
        self.port += 1
        server = subprocess.Popen(["taskset", "-c", "0", *self.prefix, "iperf3", "-s", "-1", "-p", str(self.port)],
                                  stdout=subprocess.DEVNULL)
        time.sleep(0.4)
        client = self.start(["iperf3", "-c", "127.0.0.1", "-t", "2", "-p", str(self.port), "-f", "k"], 1)
        found = re.findall(r"([\d.]+) Kbits/sec.*receiver", self.output(client))
        self.output(server, 5)
        if found:
            self.note("iperf_gb", float(found[-1]) / 8e6)

    def round(self):
        self.loopback(65536)
        self.latency("write_us", "ib_write_lat")
        self.latency("send_us", "ib_send_lat")
        self.perftest("read_us", 4, 1, "ib_read_lat", "-s", "8", "-n", "20000")
        self.ucx()
        self.perftest("write_gb_64k", 3, MIB / 1e9, "ib_write_bw", "-s", "65536", "-n", "5000")
        self.perftest("write_gb_1m", 3, MIB / 1e9, "ib_write_bw", "-s", str(MIB), "-n", "2000")
        self.iperf()
        self.perftest("rate_m", 4, 1, "ib_write_bw", "-s", "8", "-l", "32", "-n", "200000")
        self.loopback(MIB)


def table(samples):
    median = {key: statistics.median(values) for key, values in samples.items()}
    missed = []

    def row(name, value, other, other_name, goal, ratio, good):
        verdict = "ok" if good else "missed"
        if not good:
            missed.append(name)
        print(f"{name:<34}{value:>10.2f}{other:>10.2f}  {other_name:<24}{ratio:>8.2f} x  goal {goal:<30}{verdict}")

    print(f"{'figure':<34}{'Weir':>10}{'other':>10}  {'what the other is':<24}{'ratio':>10}")
    try:
        for key, name in (("write_us", "8 B RDMA write, us one way"), ("send_us", "8 B send, us one way")):
            values, flags, tcps = samples[key], samples[key + "_flag"], samples[key + "_tcp"]
            value, flag, tcp, ucx = median[key], median[key + "_flag"], median[key + "_tcp"], median["ucx_us"]
            share = statistics.median(v / (2.5 * f + 0.25) for v, f in zip(values, flags))
            row(name, value, flag, "bare flag, one way", "<= 1 x (2.5 flags + 0.25 us)", share, share <= 1)
            ratio = statistics.median(t / v for v, t in zip(values, tcps))
            row(name, value, tcp, "TCP loopback, polling", ">= 10 x faster", ratio, ratio >= 10)
            row(name, value, ucx, "ucx_perftest over TCP", ">= 8 x faster", ucx / value, ucx / value >= 8)
        for key, size, name in (("write_gb_64k", 65536, "64 KiB RDMA write, GB/s"),
                                ("write_gb_1m", MIB, "1 MiB RDMA write, GB/s")):
            copy = median[f"memcpy_gb_per_second_{size}"]
            row(name, median[key], copy, "memcpy, one core", ">= 0.5 x", median[key] / copy, median[key] / copy >= 0.5)
            other = median["iperf_gb"]
            row(name, median[key], other, "iperf3 over loopback", ">= 2 x", median[key] / other,
                median[key] / other >= 2)
        row("8 B writes in lists, million/s", median["rate_m"], 2.0, "goal", ">= 2 M/s", median["rate_m"] / 2,
            median["rate_m"] >= 2)
    except KeyError as missing:
        print(f"no figure for {missing}: that program did not end in time or is not installed")
        missed.append(str(missing))
    return missed


main(Bench, table, __doc__)
