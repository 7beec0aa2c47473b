# SPDX-License-Identifier: Apache-2.0
"""Compiles headers on their own.

Without --together each header is a translation unit of its own that includes it twice; with it all
of them share one, and --args adds flags. Objects are kept, so that ccache can answer a second run.
"""
import argparse
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from flags import compile_command  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="build directory")
    parser.add_argument("--like", required=True, help="a source file whose flags are used")
    parser.add_argument("--work", required=True, help="directory for generated files")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--args", default="", help="further flags, separated by blanks")
    parser.add_argument("headers", nargs="+")
    options = parser.parse_args()
    command, directory = compile_command(options.build, options.like)
    command += ["-O0"] + options.args.split()
    os.makedirs(options.work, exist_ok=True)

    def compile_unit(headers, name):
        source = os.path.join(options.work, name + ".cpp")
        text = "".join(f"#include <{h}>\n#include <{h}>\n" for h in headers)
        if not os.path.exists(source) or open(source).read() != text:
            with open(source, "w") as f:
                f.write(text)
        run = subprocess.run(command + ["-c", source, "-o", source + ".o"], cwd=directory,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return name, run.returncode, run.stdout

    if options.together:
        results = [compile_unit(options.headers, "together")]
    else:
        # Meson runs the folders side by side; one compiler at a time is enough within each.
        results = [compile_unit([h], h.replace("/", "_")) for h in options.headers]
    failed = 0
    for name, status, output in results:
        if status != 0 or output.strip():
            failed += 1
            print(f"== {name}: status {status}\n{output}")
    print(f"{len(results)} compiled, {failed} with errors or warnings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
