#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What many queue pairs, many messages and much memory cost, by bench/verbs_scale.cc; medians and ratios.

Every round takes each figure once. Messages are 8 bytes, in lists of 32 work requests and one by one; both programs
spin.

  bench/scale.py [--rounds 7] [--build build] [--fabric examples/pair.yaml] [--fifo]

--fifo (root) runs the programs with real-time priority, for machines that others use at the same time.
Exit code 1 if a figure is missing or misses its goal.
"""
import re
import statistics
import subprocess

from side_by_side import Rig, main

MANY = 1000


class Scale(Rig):
    first_port = 24000

    def scale(self, prefix, placement, *arguments):
        command = [*self.prefix, str(self.bin / "weir"), "run", *placement, "--", str(self.bin / "verbs_scale"),
                   *arguments]
        output = self.output(subprocess.Popen(command, text=True, env=self.env, stdout=subprocess.PIPE), 120)
        for name, value in re.findall(r"(\w+) (-?[\d.]+)$", output, re.MULTILINE):
            self.note(prefix + name, float(value))

    def pair(self, prefix, what, *arguments):
        self.port += 1
        self.scale(prefix, ["--pair"], what, str(self.port), *arguments)

    def round(self):
        for operation in ("write", "send"):
            for length in ("1", "32"):
                for count in (1, 8, MANY):
                    self.pair(f"{operation}_{length}_{count}_", "rate", str(count), length, operation)
        self.pair("", "connect", "10000")
        self.scale("", ["--hosts", "h0"], "register")


def table(samples):
    missed = []

    def row(name, keys, unit, goal, good):
        try:
            values = [statistics.median(samples[key]) for key in keys]
        except KeyError as missing:
            print(f"no figure for {missing}: verbs_scale did not end in time")
            missed.append(name)
            return
        value = values[0] / values[1] if len(values) == 2 else values[0]
        verdict = "" if good is None else "ok" if good(value) else "missed"
        if verdict == "missed":
            missed.append(name)
        print(f"{name:<56}{value:>10.2f} {unit:<10}{goal:<12}{verdict}")

    for operation in ("write", "send"):
        for length in ("1", "32"):
            rate = [f"{operation}_{length}_{count}_million_per_second" for count in (1, 8, MANY)]
            lists = f"{operation}s in lists of {length}"
            row(f"{lists}, one QP", rate[:1], "M/s", "", None)
            # The goal is for messages as programs that want rates post them.
            best = (operation, length) == ("write", "32")
            row(f"{lists}, 8 QPs", rate[1:2], "M/s", ">= 4" if best else "", (lambda v: v >= 4) if best else None)
            row(f"{lists}, {MANY} QPs beside one", [rate[2], rate[0]], "x", ">= 0.7", lambda v: v >= 0.7)
    row("10,000 QPs: to create", ["create_seconds"], "s", "", None)
    row("10,000 QPs: to connect", ["connect_seconds"], "s", "< 2", lambda v: v < 2)
    row("10,000 QPs: memory of each", ["bytes_each"], "bytes", "<= 8192", lambda v: v <= 8192)
    row("1 GiB that was touched: to register", ["register_gib_us"], "us", "< 1000", lambda v: v < 1000)
    row("4 KiB: to register and deregister", ["register_cycle_us"], "us", "", None)
    row("growth over 500,000 of these", ["growth_kib"], "KiB", "<= 64", lambda v: v <= 64)
    return missed


main(Scale, table, __doc__)
