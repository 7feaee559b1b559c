# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: a fabric for the time of the run, samples by name, rounds that take each side by turns."""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20


class Rig:
    """A fabric that is up, and the samples taken on it. Subclasses give round(): each figure once, on both sides."""
    first_port = 20000

    def __init__(self, options, folder):
        self.build = (ROOT / options.build).resolve()
        self.bin = self.build / "bin"
        self.prefix = ["chrt", "-f", "10"] if options.fifo else []
        self.env = dict(os.environ, WEIR_RUNTIME_DIR=folder)
        self.port = self.first_port
        self.samples = {}

    def note(self, key, value):
        self.samples.setdefault(key, []).append(value)

    def weir(self, *arguments):
        subprocess.run([self.bin / "weir", *arguments], env=self.env, check=True, stdout=subprocess.DEVNULL)

    def on(self, host):
        """What goes before a program that shall run on that host."""
        return [str(self.bin / "weir"), "run", "--hosts", host, "--"]

    @staticmethod
    def output(process, seconds=60):
        """Of a process once it has ended; empty if it does not, and then it is killed."""
        try:
            return process.communicate(timeout=seconds)[0] or ""
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return ""


def main(rig_class, table, description):
    """Takes rounds and prints `table` of the samples. Exit code 1 if it names figures that are missing or missed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--build", default="build")
    parser.add_argument("--fabric", default="examples/pair.yaml")
    parser.add_argument("--fifo", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        rig = rig_class(options, folder)
        rig.weir("up", str(ROOT / options.fabric))
        try:
            for number in range(options.rounds):
                print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
                rig.round()
        finally:
            rig.weir("down")
        print(f"medians of {options.rounds} rounds, load average {os.getloadavg()[0]:.1f}")
        sys.exit(1 if table(rig.samples) else 0)
