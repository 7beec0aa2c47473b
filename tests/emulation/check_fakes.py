# SPDX-License-Identifier: Apache-2.0
"""Checks that the fakes define exactly the library symbols that the backend leaves undefined.

check_fakes.py BACKEND.a EMULATOR.a: a fake too few would be taken from the real library, one too
many is never run.
"""
import re
import subprocess
import sys

FAKED = re.compile(r"^(cuda|nccl)[A-Z]\w*$")


def symbols(archive, kinds):
    out = subprocess.run(["nm", "--no-demangle", archive], check=True, capture_output=True,
                         text=True).stdout
    found = set()
    for line in out.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[-2] in kinds and FAKED.match(fields[-1]):
            found.add(fields[-1])
    return found


def main():
    used = symbols(sys.argv[1], {"U"})
    faked = symbols(sys.argv[2], {"T", "W"})
    for name in sorted(used - faked):
        print(f"{name} is used by the backend and has no fake")
    for name in sorted(faked - used):
        print(f"{name} has a fake and is used by nothing")
    if used == faked:
        print(f"{len(used)} symbols, each with its fake")
    return 0 if used == faked and used else 1


if __name__ == "__main__":
    sys.exit(main())
