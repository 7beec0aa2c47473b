# SPDX-License-Identifier: Apache-2.0
"""Compares docs/known-failures.md with the tests.

Every name in backticks under "Here" is a test case, and every case of known_failures.cpp is named.
"""
import os
import re
import sys


def cases_of(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    # A long name is wrapped into literals side by side.
    found = re.findall(r'^TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text, re.MULTILINE)
    return ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', name)) for name in found]


def main():
    root = sys.argv[1]
    cases = set()
    for folder, _, names in os.walk(os.path.join(root, "tests")):
        for name in names:
            if name.endswith(".cpp"):
                cases.update(cases_of(os.path.join(folder, name)))
    named = set()
    heading = ""
    rows = 0
    problems = []
    with open(os.path.join(root, "docs", "known-failures.md"), encoding="utf-8") as f:
        for line in f:
            if line.startswith("## "):
                heading = line[3:].strip()
            if not line.startswith("| ") or line.startswith(("| Source", "| ---")):
                continue
            cells = [c.strip() for c in line.strip().strip("|").split(" | ")]
            if len(cells) != 3:
                problems.append(f"not three columns: {line.strip()}")
                continue
            rows += 1
            if heading != "Planning":
                continue
            tests = [t for t in re.findall(r"`([^`]+)`", cells[2]) if " " in t]
            if not tests:
                problems.append(f"no test for: {cells[0]}")
            for test in tests:
                named.add(test)
                if test not in cases:
                    problems.append(f"no such test case: {test}")
    for case in cases_of(os.path.join(root, "tests", "planner", "known_failures.cpp")):
        if case not in named:
            problems.append(f"not listed: {case}")
    print("\n".join(problems) if problems else f"{rows} rows, {len(named)} test cases")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
