#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no compiler makes: layering, line length, file comments, licence lines, stray notes.

Run by ctest as the test `tidy`. Reads the layering from the weir_module() calls, so there is one
place where a dependency is declared and one place where it is enforced.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMN_LIMIT = 100
LINE_COUNT_LIMIT = 800
CODE_FOLDERS = ("src", "apps", "integrations", "tests", "bench")


def declared_dependencies():
    """Maps each module to the modules it may include, itself and transitive ones counted."""
    direct = {}
    for listfile in sorted((ROOT / "src").glob("*/CMakeLists.txt")):
        for name, body in re.findall(r"weir_module\(\s*(\w+)(.*?)\)", listfile.read_text(), re.S):
            found = re.search(r"\bDEPENDS\s+([a-z_\s]+)", body)
            direct[name] = set(found.group(1).split()) if found else set()
    closure = {}

    def close(name, path):
        if name in path:
            sys.exit(f"tidy: dependency cycle: {' -> '.join(path + [name])}")
        if name not in direct:
            sys.exit(f"tidy: {path[-1]} depends on {name}, which no weir_module() declares")
        if name not in closure:
            closure[name] = {name}.union(*(close(d, path + [name]) for d in direct[name]))
        return closure[name]

    for name in direct:
        close(name, [])
    return closure


def source_files():
    for folder in CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".c"):
                yield path


def problems():
    allowed = declared_dependencies()
    for path in source_files():
        rel = path.relative_to(ROOT)
        module = rel.parts[1] if rel.parts[0] == "src" else None
        lines = path.read_text().splitlines()
        if not lines or "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
            yield f"{rel}:1: first line is not the SPDX licence line"
        if path.suffix == ".h" and not (len(lines) > 1 and lines[1].startswith("//")):
            yield f"{rel}:2: header does not open with a comment saying what it is for"
        if len(lines) > LINE_COUNT_LIMIT:
            yield f"{rel}:{LINE_COUNT_LIMIT}: file exceeds {LINE_COUNT_LIMIT} lines, split it"
        if module is not None and module not in allowed:
            yield f"{rel}:1: no weir_module({module}) declares this folder"
            continue
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMN_LIMIT:
                yield f"{rel}:{number}: line exceeds {COLUMN_LIMIT} columns"
            if re.search(r"\b(TODO|FIXME|XXX)\b", line):
                yield f"{rel}:{number}: note left behind; do it or file it"
            target = re.match(r'#include "(\w+)/', line)
            if module and target and target.group(1) not in allowed[module]:
                yield f"{rel}:{number}: {module} may not include {target.group(1)}"
    for folder in sorted(p for p in (ROOT / "src").iterdir() if p.is_dir()):
        if not (folder / "README.md").exists():
            yield f"{folder.relative_to(ROOT)}: no README.md"


found = list(problems())
print("\n".join(found) if found else "tidy: clean")
sys.exit(1 if found else 0)
