# SPDX-License-Identifier: Apache-2.0
"""`generate`, `describe`, and every form of length file."""
import json
import xml.etree.ElementTree as xml

from support import GITHUB, Tests, close

t = Tests()

# The same lengths for the same seed, in the range of the corpus.
presets = t.json("presets", "--json")
t.check({"github", "wikipedia", "byted", "video", "mock-1k"} <= set(presets["corpora"]),
        f"corpora: {presets['corpora']}")
for corpus in presets["corpora"]:
    code, one, err = t.run("generate", "--corpus", corpus, "--count", 300, "--seed", 5)
    code2, two, _ = t.run("generate", "--corpus", corpus, "--count", 300, "--seed", 5)
    code3, other, _ = t.run("generate", "--corpus", corpus, "--count", 300, "--seed", 6)
    t.check(code == code2 == code3 == 0, f"{corpus}: {err}")
    t.check(one == two and one != other, f"{corpus}: seeds")
    t.check(len(one.split()) == 300 and all(int(n) > 0 for n in one.split()), f"{corpus}: lengths")
code, text, err = t.run("generate", "--corpus", "github", "--count", 5, "--seed", 1)
t.check(text.split() == ["231", "7643", "2881", "149", "460"], f"seed 1: {text.split()}")
code, text, err = t.run("generate", "--corpus", "github", "--count", 50, "--out", t.path("g.len"))
t.check(code == 0 and text == "" and "ByteScale" in err, f"--out: {text} {err}")
for arguments, pattern in [
        (["--corpus", "gitub", "--count", 5], "did you mean github?"),
        (["--corpus", "github", "--count", 0], "count is 0"),
        (["--corpus", "github", "--count", -4], "count is -4"),
        (["--corpus", "github", "--count", 5, "--seed", -1], "seed is -1"),
        (["--corpus", "github"], "--count"),
        (["--count", 5], "--corpus"),
]:
    code, text, err = t.run("generate", *arguments)
    t.check(code == 2 and pattern in err and text == "", f"generate {arguments}: {code} {err}")

# What describe says is what can be counted.
with open(GITHUB, encoding="utf-8") as f:
    lengths = sorted(int(line) for line in f)
out = t.json("describe", "--lengths", GITHUB, "--json")
t.check(out["sequences"] == len(lengths) and out["tokens"] == sum(lengths), "sums")
t.check(out["longest"] == lengths[-1] and out["p50"] == lengths[(len(lengths) + 1) // 2 - 1],
        f"quantiles: {out['p50']}")
t.check([s["at_most"] for s in out["shares"]] == [2048 << k for k in range(7)], "2K .. 128K")
for s in out["shares"]:
    below = [n for n in lengths if n <= s["at_most"]]
    t.check(close(s["sequences"], len(below) / len(lengths), 1e-12), f"sequences: {s}")
    t.check(close(s["tokens"], sum(below) / sum(lengths), 1e-12), f"tokens: {s}")
out = t.json("describe", "--corpus", "wikipedia", "--json")
t.check(out["corpus"]["largest_distance_sequences"] < 0.005 and
        out["corpus"]["largest_distance_tokens"] < 0.02, f"wikipedia: {out['corpus']}")
t.check(not out["corpus"]["assumed"], "wikipedia is not assumed")
code, text, err = t.run("describe", "--corpus", "cc-short", "--count", 1000)
t.check("assumed" in text and "nothing published" in text, f"assumed: {text}")
code, text, err = t.run("describe", "--lengths", GITHUB, "--corpus", "github", "--svg",
                        t.path("d.svg"))
t.check("published" in text and "largest distance" in text, f"file beside corpus: {text} {err}")
xml.parse(t.path("d.svg"))
for arguments, pattern in [([], "nothing to describe"),
                           (["--corpus", "x"], "no corpus is named 'x'"),
                           (["--lengths", "no.len"], "cannot open"),
                           (["--corpus", "video", "--min-length", 99999], "no length is left")]:
    code, text, err = t.run("describe", *arguments)
    t.check(code in (1, 2) and pattern in err, f"describe {arguments}: {code} {err}")

# One batch in all forms.
JOB = ["--ranks", 4, "--max-tokens-per-rank", 1000, "--json"]
plain = t.write("a.len", "100\n200\n300\n300\n")
jsonl = t.write("a.jsonl", '{"length": 100}\n{"input_ids": [' + ",".join(["7"] * 200) +
                ']}\n\n{"tokens": 300, "text": "x"}\n{"length": 300}\n')
histogram = t.write("a.hist", "# length count\n100 1\n200, 1\n300 2\n")
expected = t.json("plan", "--lengths", plain, *JOB)
for name, lines in [(jsonl, [1, 2, 4, 5]), (histogram, [2, 3, 4, 4])]:
    made = t.json("plan", "--lengths", name, *JOB)
    t.check(made["source_lines"] == lines, f"{name}: {made['source_lines']}")
    t.check({**made, "source_lines": 0} == {**expected, "source_lines": 0}, f"{name} differs")
made = t.json("plan", "--lengths", t.write("b.txt", '{"length": 5}\n'), "--format", "jsonl", *JOB)
t.check(made["seqlens"] == [5], "--format")
one = t.json("plan", "--lengths", plain, "--shuffle", 3, *JOB)
two = t.json("plan", "--lengths", plain, "--shuffle", 3, *JOB)
t.check(one == two and sorted(one["seqlens"]) == [100, 200, 300, 300], "--shuffle")
for content, name, pattern in [
        ('{"length": "x"}', "b.jsonl", r"b.jsonl line 1: length is a string"),
        ('{"length": 5}\n{', "b.jsonl", "line 2: '{' is not JSON"),
        ("5", "b.hist", "line 1: '5' is not a length and a count"),
        ("5 -1", "b.hist", "line 1: the count is -1"),
        ("", "b.jsonl", "b.jsonl holds no length")]:
    code, _, err = t.run("plan", "--lengths", t.write(name, content), *JOB)
    t.check(code in (1, 2) and pattern in err, f"{name} {content!r}: {code} {err}")
code, _, err = t.run("plan", "--lengths", plain, "--format", "csv", *JOB)
t.check(code == 2 and "format is 'csv'" in err, f"--format csv: {err}")

# Atomic groups stay together, and the plan file says so.
pairs = t.json("plan", "--lengths", plain, "--atomic", 2, *JOB, "--out", t.path("pairs.json"))
t.check(pairs["atoms"] == [0, 0, 1, 1], f"atoms: {pairs.get('atoms')}")
packs = [g["samples"] for mb in pairs["micro_batches"] for g in mb["groups"]]
t.check(all((0 in p) == (1 in p) and (2 in p) == (3 in p) for p in packs), f"pairs: {packs}")
broken = json.loads(json.dumps(pairs))
broken["micro_batches"] = [{"groups": [{"start": i, "size": 1, "samples": [i]} for i in range(4)]}]
out = t.json("check", t.write("broken.json", broken), "--json", status=1)
t.check(out["errors"].get("split_atom") == 2, f"split pairs: {out['errors']}")
grouped = t.write("g.jsonl", '{"length": 10, "group": 4}\n{"length": 20}\n{"length": 30, "group": 4}')
made = t.json("plan", "--lengths", grouped, *JOB)
t.check(made["atoms"] == [4, -1, 4], f"groups of JSON lines: {made.get('atoms')}")

# Limits reach the plan, and the plan keeps them.
batch = ["--lengths", GITHUB, "--batch", 200, "--drop-too-long", "--ranks", 8, "--pp", 4,
         "--max-tokens-per-rank", 16384, "--json"]
made = t.json("plan", *batch, "--max-inflight-tokens", 30000)
t.check(made["statistics"]["inflight_peak_tokens"] <= 30000, "--max-inflight-tokens")
made = t.json("plan", *batch, "--max-sequences-per-pack", 5)
t.check(max(len(g["samples"]) for mb in made["micro_batches"] for g in mb["groups"]) <= 5,
        "--max-sequences-per-pack")
made = t.json("plan", *batch, "--micro-batch-multiple", 6)
t.check(len(made["micro_batches"]) % 6 == 0, "--micro-batch-multiple")
made = t.json("plan", *batch, "--uniform-cp", "--no-idle-ranks")
t.check(all(len({g["size"] for g in mb["groups"]}) == 1 for mb in made["micro_batches"]) and
        made["statistics"]["idle_slots"] == 0, "--uniform-cp --no-idle-ranks")
made = t.json("plan", *batch, "--cp-sizes", "1,3,8")
t.check({g["size"] for mb in made["micro_batches"] for g in mb["groups"]} <= {1, 3, 8},
        "--cp-sizes")
made = t.json("plan", *batch, "--pad", "zigzag", "--tp", 2, "--sequence-parallel",
              "--pad-multiple", 3)
t.check(made["pad"] == {"mode": "zigzag", "multiple": 3, "sequence_parallel": 2},
        f"--pad: {made['pad']}")
made = t.json("plan", *batch, "--memory-gib", 80, "--model", "llama-13b", "--cluster", "h100")
t.check(0 < made["statistics"]["inflight_peak_tokens"] <=
        made["limits"]["max_inflight_tokens"], f"--memory-gib: {made['limits']}")
made = t.json("plan", *batch, "--packer", "packing_only", "--cp", 8, "--pack-tokens", 20000,
              "--max-length", 20000)
t.check(max(sum(made["seqlens"][i] for i in g["samples"]) for mb in made["micro_batches"]
            for g in mb["groups"]) <= 20000, "--pack-tokens")
made = t.json("plan", *batch, "--packer", "padded_bshd", "--cp", 8, "--micro-batch-size", 3,
              "--max-length", 20000)
t.check(max(len(g["samples"]) for mb in made["micro_batches"] for g in mb["groups"]) == 3,
        "--micro-batch-size")
made = t.json("plan", *batch, "--vpp", 2)
t.check(len(made["micro_batches"]) % 4 == 0, "--vpp")
for arguments, status, pattern in [
        (["--max-inflight-tokens", 0], 2, "max-inflight-tokens is 0"),
        (["--memory-gib", "much"], 2, "memory-gib is 'much'"),
        (["--memory-gib", -3], 2, "memory-gib is '-3'"),
        (["--memory-gib", 2, "--model", "llama-70b"], 1, "infeasible"),
        (["--cp-sizes", "1,x"], 2, "cp-sizes holds 'x'"),
        (["--cp-sizes", "0"], 2, "cp-sizes holds '0'"),
        (["--cp-sizes", "16"], 2, "allowed CP size 16"),
        (["--pad", "even"], 2, "pad is 'even'"),
        (["--pad-multiple", 0], 2, "padding multiple is 0"),
        (["--micro-batch-multiple", 0], 2, "micro-batch-multiple is 0"),
        (["--pack-tokens", 0], 2, "pack-tokens is 0"),
        (["--micro-batch-size", -1], 2, "micro-batch-size is -1"),
        (["--atomic", 0], 2, "atomic is 0"),
        (["--micro-batches", 5, "--micro-batch-multiple", 2], 2, "micro-batches 5 is not"),
        (["--pad-multiple", 1000000], 2, "below the alignment"),
]:
    code, _, err = t.run("plan", *batch, *arguments)
    t.check(code == status and pattern in err, f"{arguments}: {code} {err}")
t.finish()
