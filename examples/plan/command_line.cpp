// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"

#include <dyncp/core/version.hpp>
#include <dyncp/io/text.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace tool {
namespace {

std::int64_t to_integer(const std::string& name, const std::string& word) {
  const dyncp::text::parsed_integer number = dyncp::text::parse_integer(word);
  if (number.status == dyncp::text::parse_status::malformed) {
    throw CLI::ValidationError(name, dyncp::text::quoted(word) + " is not a whole number");
  }
  if (number.status == dyncp::text::parse_status::overflow) {
    throw CLI::ValidationError(name, word + " does not fit in 64 bits");
  }
  return number.value;
}

/// Adds the options of one subcommand; a later occurrence of an option replaces an earlier one.
class builder {
 public:
  builder(CLI::App& parent, options& o, command c, const char* name, const char* what)
      : app_(*parent.add_subcommand(name, what)), o_(o) {
    app_.callback([&o, c] { o.command = c; });
  }

  CLI::Option* integer(const std::string& name, std::int64_t& target, const std::string& what) {
    options& o = o_;
    return app_
        .add_option_function<std::string>(
            name,
            [name, &target, &o](const std::string& word) {
              target = to_integer(name, word);
              o.given.push_back(name.substr(2));
            },
            what)
        ->type_name("N")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group(group_);
  }

  CLI::Option* word(const std::string& name, std::string& target, const std::string& what,
                    const std::string& type) {
    return app_.add_option(name, target, what)
        ->type_name(type)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group(group_);
  }

  CLI::Option* words(const std::string& name, std::vector<std::string>& target,
                     const std::string& what, const std::string& type) {
    return app_.add_option(name, target, what)->type_name(type)->group(group_);
  }

  void flag(const std::string& name, bool& target, const std::string& what) {
    app_.add_flag(name, target, what)->group(group_);
  }

  builder& group(const char* title) {
    group_ = title;
    return *this;
  }

 private:
  CLI::App& app_;
  options& o_;
  std::string group_ = "Options";
};

CLI::Option* add_sequences(builder& b, options& o) {
  b.group("Which sequences");
  CLI::Option* lengths = b.word("--lengths", o.lengths, "lengths in tokens; - reads standard input",
                                "FILE");
  b.word("--format", o.format,
         "lines: a length a line; jsonl: an object with length, input_ids or tokens; histogram: "
         "length and count; auto: by the name (.jsonl, .hist)",
         "auto|lines|jsonl|histogram");
  b.integer("--min-length", o.min_length, "leave out shorter sequences, before all else");
  b.integer("--max-length", o.max_length, "leave out longer sequences, before all else");
  return lengths;
}

void add_batch(builder& b, options& o) {
  add_sequences(b, o)->required();
  b.integer("--shuffle", o.shuffle, "shuffle the file by this seed first");
  b.integer("--skip", o.skip, "pass over the first N of what is left");
  b.integer("--batch", o.batch, "plan the next N sequences (default: all)");
  b.integer("--atomic", o.atomic, "each N in a row of the file stay in one pack (pairs: 2)");
  b.flag("--drop-too-long", o.drop_too_long, "leave out what no group can hold, and count it");
  b.flag("--drop-empty", o.drop_empty, "leave out sequences of length 0, and count them");
}

void add_specs(builder& b, options& o) {
  b.word("--model", o.model, "preset or JSON file (default reference-13b)", "NAME|FILE");
  b.word("--cluster", o.cluster, "preset or JSON file (default reference-13b)", "NAME|FILE");
  b.words("--set", o.sets, "change a field of the model or cluster; may be repeated", "KEY=VALUE")
      ->allow_extra_args(false);
}

void add_job(builder& b, options& o) {
  b.integer("--pp", o.pp, "pipeline stages (default 1)");
  b.integer("--vpp", o.vpp, "virtual stages a rank, interleaved 1F1B (default 1)");
  b.integer("--tp", o.tp, "GPUs that share a rank (default 1)");
  b.integer("--cp", o.cp, "CP size of the static packers (default 1)");
  b.integer("--min-cp", o.min_cp, "smallest CP group (default 1)");
  b.integer("--max-cp", o.max_cp, "largest CP group (default: ranks)");
  b.words("--cp-sizes", o.cp_sizes, "the allowed CP sizes, instead of powers of two", "N,N,...")
      ->delimiter(',');
  add_specs(b, o);
}

void add_limits(builder& b, options& o) {
  b.integer("--max-inflight-tokens", o.max_inflight_tokens,
            "padded tokens per rank in flight on any stage");
  b.word("--memory-gib", o.memory_gib, "the same, from the memory of a GPU", "GIB");
  b.integer("--max-sequences-per-pack", o.max_sequences_per_pack, "cap on sequences of a pack");
  b.integer("--micro-batch-multiple", o.micro_batch_multiple, "M is a multiple of N");
  b.flag("--no-idle-ranks", o.no_idle_ranks, "every rank works in every micro-batch");
  b.flag("--uniform-cp", o.uniform_cp, "one CP size within a micro-batch");
}

void add_problem(builder& b, options& o) {
  add_batch(b, o);
  b.group("The job");
  b.integer("--ranks", o.ranks, "ranks of the DPxCP domain, dp * cp")->required();
  add_job(b, o);
  b.group("Limits");
  b.integer("--max-tokens-per-rank", o.max_tokens_per_rank,
            "padded tokens that one rank can hold in a micro-batch")
      ->required();
  add_limits(b, o);
  b.integer("--micro-batches", o.micro_batches, "fix M (default: chosen)");
  b.word("--pad", o.pad, "zigzag pads each sequence to 2c on c > 1 ranks", "none|zigzag");
  b.integer("--pad-multiple", o.pad_multiple, "and each sequence to a multiple of N");
  b.integer("--shard-multiple", o.shard_multiple, "pad a pack's tokens per rank to N at its tail");
  b.flag("--sequence-parallel", o.sequence_parallel, "pad sequences to tp times that");
}

void add_packer_parameters(builder& b, options& o) {
  b.integer("--pack-tokens", o.pack_tokens,
            "padded tokens at which static packers close a pack (default: limit * cp)");
  b.integer("--micro-batch-size", o.micro_batch_size,
            "sequences of a lane in a micro-batch of padded_bshd (default 1)");
}

void add_plan(CLI::App& app, options& o) {
  builder b(app, o, command::plan, "plan", "plan a batch: packs, CP sizes, micro-batches");
  add_problem(b, o);
  b.group("Planning");
  b.word("--packer", o.packer, "how to plan (default dynamic_cp; see presets)", "NAME");
  add_packer_parameters(b, o);
  b.word("--batches", o.batches, "plan batch after batch of --batch sequences", "all|COUNT");
  b.flag("--curve", o.curve, "plan at many M: quota, makespan, knee");
  b.group("Output");
  b.word("--out", o.out, "write the plan as JSON", "FILE");
  b.word("--trace", o.trace, "write a Chrome trace, for ui.perfetto.dev", "FILE");
  b.word("--svg", o.svg, "draw the curve", "FILE");
  b.flag("--json", o.json, "print JSON instead of the report");
  b.flag("--verbose,-v", o.verbose, "list every micro-batch");
}

void add_compare(CLI::App& app, options& o) {
  builder b(app, o, command::compare, "compare", "packers side by side on one batch");
  add_problem(b, o);
  b.group("Planning");
  b.words("--packers", o.packers, "which packers, the baseline first (default: the main ones)",
          "all|NAME,...")
      ->delimiter(',');
  add_packer_parameters(b, o);
  b.group("Output");
  b.word("--svg", o.svg, "draw the first and the best plan, stage by stage", "FILE");
  b.word("--html", o.html, "write one page with pictures, table and lengths", "FILE");
  b.flag("--json", o.json, "print JSON instead of the table");
}

void add_check(CLI::App& app, options& o) {
  builder b(app, o, command::check, "check", "validate and simulate a plan file");
  b.word("plan", o.plan_file, "plan file; - reads standard input", "PLAN.json")->required();
  b.group("The job, where the file does not say or another is wanted");
  add_job(b, o);
  add_limits(b, o);
  b.group("Output");
  b.word("--trace", o.trace, "write a Chrome trace, for ui.perfetto.dev", "FILE");
  b.flag("--json", o.json, "print verdict, times and peaks as JSON");
  b.flag("--verbose,-v", o.verbose, "list every micro-batch and violation");
}

void add_presets(CLI::App& app, options& o) {
  builder b(app, o, command::presets, "presets", "list models, clusters, packers and corpora");
  b.word("name", o.preset, "show the fields of one model or cluster", "NAME");
  b.flag("--json", o.json, "print JSON, a form that --model and --cluster read");
}

void add_generate(CLI::App& app, options& o) {
  builder b(app, o, command::generate, "generate", "draw sequence lengths of a corpus");
  b.word("--corpus", o.corpus, "which (see presets)", "NAME")->required();
  b.integer("--count", o.count, "how many")->required();
  b.integer("--seed", o.seed, "0 or more; the same lengths everywhere for the same (default 1)");
  b.word("--out", o.out, "write them to a file instead of standard output", "FILE");
}

void add_describe(CLI::App& app, options& o) {
  builder b(app, o, command::describe, "describe",
            "shares of sequences and tokens by length, beside published ones");
  add_sequences(b, o);
  b.group("Which corpus");
  b.word("--corpus", o.corpus, "compare with it; without --lengths describe it", "NAME");
  b.integer("--count", o.count, "lengths to draw of it (default 1000000)");
  b.integer("--seed", o.seed, "0 or more (default 1)");
  b.group("Output");
  b.word("--svg", o.svg, "draw the shares", "FILE");
  b.flag("--json", o.json, "print JSON instead of the table");
}

// Names of the options of the subcommand that was given, or of the subcommands themselves.
std::vector<std::string> known_words(const CLI::App& app) {
  std::vector<std::string> names;
  if (app.get_subcommands().empty()) {
    for (const CLI::App* sub : app.get_subcommands(nullptr)) names.push_back(sub->get_name());
    return names;
  }
  for (const CLI::Option* option : app.get_subcommands().front()->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What to try instead of the first word that is not known.
std::string suggestion(const CLI::App& app, const std::vector<std::string>& words) {
  const std::vector<std::string> known = known_words(app);
  const bool commands = app.get_subcommands().empty();
  for (std::string word : words) {
    word = word.substr(0, word.find('='));
    const bool candidate = commands ? word.rfind('-', 0) != 0 : word.rfind("--", 0) == 0;
    if (!candidate || std::find(known.begin(), known.end(), word) != known.end()) continue;
    const std::string nearest = dyncp::text::nearest_name(word, known);
    const std::string about = commands ? dyncp::text::quoted(word) + " is no subcommand; " : "";
    if (!nearest.empty()) return about + "did you mean " + nearest + "?";
    return about + (commands ? "known: " + dyncp::text::joined(known) : "see --help");
  }
  return commands ? "known: " + dyncp::text::joined(known) : "see --help";
}

}  // namespace

parsed_command_line parse_command_line(int argc, char** argv) {
  parsed_command_line out;
  CLI::App app{"Plans batches of sequences for dynamic context parallelism.\n"
               "Exit status: 0 valid, 1 infeasible or invalid, 2 usage.",
               "dyncp-plan"};
  app.require_subcommand(1);
  app.set_version_flag("--version",
                       "dyncp-plan " + std::to_string(DYNCP_VERSION_MAJOR) + "." +
                           std::to_string(DYNCP_VERSION_MINOR) + "." +
                           std::to_string(DYNCP_VERSION_PATCH));
  add_plan(app, out.options);
  add_compare(app, out.options);
  add_check(app, out.options);
  add_generate(app, out.options);
  add_describe(app, out.options);
  add_presets(app, out.options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    out.exit_status = app.exit(asked, std::cout, std::cerr);
  } catch (const CLI::ParseError& mistake) {
    std::cerr << "dyncp-plan: usage: " << mistake.what() << "\n  hint: "
              << suggestion(app, std::vector<std::string>(argv + 1, argv + argc)) << '\n';
    out.exit_status = 2;
  }
  return out;
}

}  // namespace tool
