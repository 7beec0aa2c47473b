# SPDX-License-Identifier: Apache-2.0
"""Options of the trainers under examples/: what they cannot do is refused by a sentence that names
the value, before anything runs; help goes to stdout."""
import subprocess
import sys

megatron, rl, gdn = sys.argv[1:]
USAGE = "usage: "
CASES = [
    # program, arguments, status, what stdout or stderr says
    (megatron, ["--help"], 0, USAGE),
    (rl, ["--help"], 0, USAGE),
    (megatron, ["parity", "faster"], 2, "unknown: faster"),
    (megatron, ["--steps"], 2, "--steps needs a number"),
    (megatron, ["--steps", "abc"], 2, "not 'abc'"),
    (megatron, ["--steps", "3x"], 2, "not '3x'"),
    (megatron, ["--steps", "0"], 2, "from 1 to"),
    (megatron, ["--batch", "99999999999"], 2, "not '99999999999'"),
    (megatron, ["--ranks", "100000"], 2, "from 1 to 256, not '100000'"),
    (megatron, ["--ranks", "128", "--pp", "4"], 2, "512 ranks; at most 256"),
    (megatron, ["--steps", "60000", "--batch", "60000"], 2, "3600000000 samples"),
    (megatron, ["race", "--float"], 2, "go with parity, not race"),
    (megatron, ["plan", "--mpi"], 2, "go with parity, not plan"),
    (megatron, ["--mpi", "--float"], 2, "double"),
    (megatron, ["plan", "--ranks", "4"], 2, "takes no sizes"),
    # Found by the library or the model, on all ranks.
    (megatron, ["parity", "--steps", "1", "--ranks", "4", "--cp", "3"], 2, "static cp 3"),
    (megatron, ["parity", "--steps", "1", "--tp", "3"], 2, "4 is not a multiple of 3"),
    (megatron, ["parity", "--steps", "1", "--pp", "3"], 2, "layers over virtual stages"),
    (rl, ["--outside", "-3"], 2, "not '-3'"),
    (rl, ["--outside", "nan"], 2, "not 'nan'"),
    (rl, ["--outside", "1s"], 2, "not '1s'"),
    (rl, ["--outside"], 2, USAGE),
    (gdn, ["--ranks", "4"], 2, USAGE),
]

failed = 0
for program, arguments, status, text in CASES:
    run = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, timeout=60)
    says, silent = (run.stdout, run.stderr) if status == 0 else (run.stderr, run.stdout)
    if run.returncode != status or text not in says or silent:
        failed += 1
        print(f"{arguments}: status {run.returncode}, stdout {run.stdout!r}, stderr {run.stderr!r}")
print(f"{len(CASES)} command lines, {failed} wrong")
sys.exit(1 if failed else 0)
