# SPDX-License-Identifier: Apache-2.0
"""What `plan` writes, `check` confirms: the same numbers, byte for byte the same file each time."""
import json

from support import GITHUB, Tests, close

# Their originals do not look at it; such plans are refused.
MAY_BREAK_THE_LIMIT = {"verl", "relax", "three_stage_2959"}

t = Tests()


def plan(*more, status=0):
    return t.json("plan", "--lengths", GITHUB, "--min-length", 16, "--max-length", 131072,
                  "--batch", 512, "--max-tokens-per-rank", 16384, "--json", *more, status=status)


packers = t.json("presets", "--json")["packers"]
t.check({"dynamic_cp", "packing_only", "static_balanced", "padded_bshd", "three_stage"} <=
        set(packers), f"packers: {packers}")
for packer in packers:
    arguments = ["--ranks", 16, "--pp", 4, "--cp", 8, "--packer", packer]
    if packer in MAY_BREAK_THE_LIMIT:
        code, _, err = t.run("plan", "--lengths", GITHUB, "--batch", 512, "--max-length", 131072,
                             "--min-length", 1, "--max-tokens-per-rank", 16384, *arguments)
        t.check(code == 0 or code == 1 and ("invalid_plan" in err or "not_found" in err),
                f"{packer}: {code} {err}")
        continue
    made = plan(*arguments, "--out", t.path("a.json"))
    again = plan(*arguments, "--out", t.path("b.json"))
    with open(t.path("a.json"), "rb") as a, open(t.path("b.json"), "rb") as b:
        t.check(a.read() == b.read(), f"{packer}: two runs, two files")
    with open(t.path("a.json"), encoding="utf-8") as f:
        t.check(json.load(f) == made, f"{packer}: --json and --out differ")
    t.check(made["format"] == "dyncp-plan-1", f"{packer}: format")
    t.check(len(made["seqlens"]) == 512 and len(made["source_lines"]) == 512, f"{packer}: lengths")

    # Lines of the file, by an independent reading of it.
    with open(GITHUB, encoding="utf-8") as f:
        lines = [int(line) for line in f]
    t.check(all(lines[n - 1] == s for n, s in zip(made["source_lines"], made["seqlens"])),
            f"{packer}: source_lines")
    placed = [i for mb in made["micro_batches"] for g in mb["groups"] for i in g["samples"]]
    t.check(sorted(placed) == list(range(512)), f"{packer}: every sample once")

    checked = t.json("check", t.path("a.json"), "--json")
    t.check(checked["valid"] and checked["errors"] == {}, f"{packer}: {checked['errors']}")
    t.check(checked["statistics"] == made["statistics"], f"{packer}: other statistics")
    # With the four keys alone, and the job as options.
    four = {k: made[k] for k in ("num_ranks", "max_tokens_per_rank", "seqlens", "micro_batches")}
    if made["pad"]["mode"] != "none":
        four["pad"] = made["pad"]
    bare = t.json("check", t.write("four.json", four), "--pp", 4, "--json")
    t.check(bare == {**checked, "statistics": bare["statistics"]}, f"{packer}: four keys")
    # The options of `check` go over what the file says.
    slower = t.json("check", t.path("a.json"), "--json", "--set", "linear_flops_per_s=300e12")
    t.check(slower["makespan_s"] > 1.2 * checked["makespan_s"], f"{packer}: --set in check")

# Dropping is counted and makes the batch smaller.
mixed = t.write("mixed.len", "100\n0\n5000\n200\n\n# end\n300\n")
out = t.json("plan", "--lengths", mixed, "--ranks", 2, "--max-tokens-per-rank", 1000, "--json",
             "--drop-too-long", "--drop-empty")
t.check(out["seqlens"] == [100, 200, 300], f"dropped: {out['seqlens']}")
t.check(out["source_lines"] == [1, 4, 7], f"dropped: {out['source_lines']}")
code, text, err = t.run("plan", "--lengths", mixed, "--ranks", 2, "--max-tokens-per-rank", 1000,
                        "--drop-too-long", "--drop-empty")
t.check("1 empty and dropped, 1 too long and dropped" in text, f"counts of drops: {text}")
out = t.json("plan", "--lengths", mixed, "--ranks", 2, "--max-tokens-per-rank", 1000, "--json",
             "--min-length", 1, "--max-length", 4000, "--skip", 1, "--batch", 1)
t.check(out["source_lines"] == [4], f"filter, skip, batch: {out['source_lines']}")

# Standard input, a fixed M, a model from a file.
code, text, err = t.run("plan", "--lengths", "-", "--ranks", 2, "--max-tokens-per-rank", 1000,
                        "--micro-batches", 3, "--json", stdin=b"10\n20\n30\n40\n")
t.check(code == 0 and json.loads(text)["statistics"]["micro_batches"] == 3, f"fixed M: {err}")
preset = t.json("presets", "reference-13b", "--json")
t.write("model.json", preset)
t.write("cluster.json", preset["cluster"])
one = plan("--ranks", 8, "--model", "model.json", "--cluster", "cluster.json")
two = plan("--ranks", 8)
t.check(one == two, "presets and their own JSON differ")
faster = plan("--ranks", 8, "--packer", "packing_only", "--cp", 8, "--set", "fixed_s=0")
slower = plan("--ranks", 8, "--packer", "packing_only", "--cp", 8)
count = slower["statistics"]["micro_batches"]
t.check(close(slower["statistics"]["makespan_s"] - faster["statistics"]["makespan_s"],
              2e-3 * count, 1.0), "--set fixed_s")

# Reports for people.
code, text, err = t.run("plan", "--lengths", GITHUB, "--batch", 256, "--drop-too-long", "--ranks",
                        8, "--pp", 8, "--max-tokens-per-rank", 16384)
for word in ["iteration", "makespan", "bubble", "micro-batches", "tokens a rank", "cp", "planned in"]:
    t.check(word in text, f"the report of plan lacks {word!r}: {text} {err}")
code, text, err = t.run("check", t.path("a.json"))
for word in ["valid: 512 sequences", "iteration", "forward"]:
    t.check(word in text, f"the report of check lacks {word!r}")
for arguments in [["--help"], ["plan", "--help"], ["check", "--help"], ["--version"], ["presets"]]:
    code, text, err = t.run(*arguments)
    t.check(code == 0 and text and not err, f"{arguments}: {code} {err}")
t.finish()
