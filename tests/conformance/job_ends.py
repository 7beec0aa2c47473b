# SPDX-License-Identifier: Apache-2.0
"""A job of MPI in which one process goes wrong ends by itself: soon, with a status that says so, and
without leaving a process behind.

job_ends.py MPIRUN PROCESSES PROGRAM FAULT...: the program prints "pid N" and takes the fault as its
argument; with "none" it ends well."""
import subprocess
import sys
import time

# Less than the deadline of the fabric, 60 s: what ends the job is not that its peers gave up.
LIMIT_S = 30


def run(fault):
    """Status, seconds and output of a job; ends this program if the job does not end."""
    begin = time.monotonic()
    job = subprocess.Popen([mpirun, "-n", processes, program, fault], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = job.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        job.terminate()  # mpirun ends its processes then
        output, _ = job.communicate()
        sys.exit(f"{fault}: the job has not ended within {LIMIT_S} s:\n{output}")
    return job.returncode, time.monotonic() - begin, output


def running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"  # ended, not yet waited for
    except (FileNotFoundError, ProcessLookupError):
        return False


mpirun, processes, program, *faults = sys.argv[1:]
for fault in ["none", *faults]:
    status, seconds, output = run(fault)
    print(f"{fault}: status {status} after {seconds:.1f} s")
    if (status == 0) != (fault == "none"):
        sys.exit(f"{fault}: status {status}:\n{output}")
    pids = [int(line.split()[1]) for line in output.splitlines() if line.startswith("pid ")]
    if len(pids) != int(processes):
        sys.exit(f"{fault}: {len(pids)} of {processes} processes began:\n{output}")
    for _ in range(50):
        left = [pid for pid in pids if running(pid)]
        if not left:
            break
        time.sleep(0.1)
    else:
        sys.exit(f"{fault}: these processes are still there: {left}\n{output}")
