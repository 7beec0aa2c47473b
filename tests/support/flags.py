# SPDX-License-Identifier: Apache-2.0
"""The compiler command of a translation unit of the build, for tests that compile on their own."""
import json
import os
import shlex


def compile_command(build_dir, source_suffix):
    """(arguments without source, output and dependency file; directory to run them in)."""
    with open(os.path.join(build_dir, "compile_commands.json")) as f:
        entries = json.load(f)
    for entry in entries:
        if entry["file"].endswith(source_suffix):
            break
    else:
        raise SystemExit(f"no {source_suffix} in {build_dir}/compile_commands.json")
    kept = []
    arguments = iter(shlex.split(entry["command"]))
    for argument in arguments:
        if argument in ("-o", "-c", "-MF", "-MQ", "-MT"):
            next(arguments)
        elif argument in ("-MD", "-MMD") or argument.startswith(("-O", "-g")):
            pass
        else:
            kept.append(argument)
    return kept, entry["directory"]
