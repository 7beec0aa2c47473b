# SPDX-License-Identifier: Apache-2.0
"""A snippet that must compile, and must not with -DMUST_FAIL, for the reason that it states.

Its lines "// expect: REGEX" are searched in the compiler's messages; each has to be found. Without
the first half of the check any typing error would pass as the expected failure.
"""
import argparse
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from flags import compile_command  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="build directory")
    parser.add_argument("--like", required=True, help="a source file whose flags are used")
    parser.add_argument("snippet")
    options = parser.parse_args()
    command, directory = compile_command(options.build, options.like)
    command += ["-fsyntax-only", "-Werror"]
    with open(options.snippet, encoding="utf-8") as f:
        expected = re.findall(r"^// expect: (.+)$", f.read(), re.MULTILINE)
    if not expected:
        print("no '// expect: REGEX' line")
        return 1

    def run(more):
        return subprocess.run(command + more + ["-c", options.snippet], cwd=directory, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    good = run([])
    if good.returncode != 0:
        print(f"does not compile without MUST_FAIL:\n{good.stdout}")
        return 1
    bad = run(["-DMUST_FAIL"])
    if bad.returncode == 0:
        print("compiles with MUST_FAIL")
        return 1
    missing = [pattern for pattern in expected if not re.search(pattern, bad.stdout)]
    for pattern in missing:
        print(f"message not found: {pattern}")
    if missing:
        print(bad.stdout)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
