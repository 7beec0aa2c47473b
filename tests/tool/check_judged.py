# SPDX-License-Identifier: Apache-2.0
"""`dyncp-plan check --json` gives every judged plan the verdict and times of its evaluator."""
import glob
import json
import os

from support import ROOT, Tests, close

# The evaluator's names of parameters.
SET = {"gpus_per_node": "gpus_per_node", "beta_intra": "nvlink_bytes_per_s"}

t = Tests()


def compare(where, value, judged):
    if isinstance(judged, dict):
        t.check(set(value) == set(judged), f"{where}: {value} instead of {judged}")
        for key in set(value) & set(judged):
            compare(f"{where}.{key}", value[key], judged[key])
    elif isinstance(judged, list):
        t.check(len(value) == len(judged), f"{where}: {len(value)} items, not {len(judged)}")
        for i, (v, j) in enumerate(zip(value, judged)):
            compare(f"{where}[{i}]", v, j)
    elif isinstance(judged, float):
        t.check(close(value, judged, 1e-9), f"{where}: {value} instead of {judged}")
    else:
        t.check(value == judged, f"{where}: {value} instead of {judged}")


files = sorted(glob.glob(os.path.join(ROOT, "tests", "golden", "judged", "*.json")))
t.check(len(files) >= 21, f"{len(files)} judged plans")
for path in files:
    name = os.path.basename(path)
    with open(path, encoding="utf-8") as f:
        case = json.load(f)
    changed = case["changed"]
    arguments = ["check", t.write(name, case["plan"]), "--json", "--model", "reference-13b",
                 "--cluster", "reference-13b", "--pp", changed.get("pp", 8)]
    for key in set(changed) - {"pp"}:
        arguments += ["--set", f"{SET[key]}={changed[key]!r}"]
    judged = case["judged"]
    out = t.json(*arguments, status=0 if judged["valid"] else 1)
    for key, value in judged.items():
        t.check(key in out, f"{name}: no {key}")
        if key in out:
            compare(f"{name} {key}", out[key], value)
    t.check(("makespan_s" in out) == ("makespan_s" in judged), f"{name}: times or no times")
t.finish()
