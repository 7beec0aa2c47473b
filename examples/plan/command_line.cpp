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

class builder {
 public:
  builder(CLI::App& app, options& opts) : app_(app), opts_(opts) {}

  CLI::Option* integer(const std::string& name, std::int64_t& target, const std::string& what) {
    options& opts = opts_;
    return app_
        .add_option_function<std::string>(
            name,
            [name, &target, &opts](const std::string& word) {
              target = to_integer(name, word);
              opts.given.push_back(name.substr(2));
            },
            what)
        ->type_name("N")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  CLI::Option* word(const std::string& name, std::string& target, const std::string& what,
                    const std::string& type) {
    return app_.add_option(name, target, what)
        ->type_name(type)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  void flag(const std::string& name, bool& target, const std::string& what) {
    app_.add_flag(name, target, what);
  }

 private:
  CLI::App& app_;
  options& opts_;
};

void add_sequence_options(builder& b, options& o) {
  b.word("--lengths", o.lengths, "one length in tokens a line; - reads standard input", "FILE")
      ->required();
  b.integer("--min-length", o.min_length, "leave out shorter sequences, before all else");
  b.integer("--max-length", o.max_length, "leave out longer sequences, before all else");
  b.integer("--skip", o.skip, "pass over the first N of what is left");
  b.integer("--batch", o.batch, "plan the next N sequences (default: all)");
  b.flag("--drop-too-long", o.drop_too_long, "leave out what no group can hold, and count it");
  b.flag("--drop-empty", o.drop_empty, "leave out sequences of length 0, and count them");
}

void add_job_options(builder& b, options& o) {
  b.integer("--pp", o.pp, "pipeline stages (default 1)");
  b.integer("--vpp", o.vpp, "virtual stages a rank, interleaved 1F1B (default 1)");
  b.integer("--tp", o.tp, "GPUs that share a rank (default 1)");
  b.integer("--cp", o.cp, "CP size of the static packers (default 1)");
  b.integer("--min-cp", o.min_cp, "smallest CP group (default 1)");
  b.integer("--max-cp", o.max_cp, "largest CP group (default: ranks)");
}

void add_spec_options(CLI::App& app, builder& b, options& o) {
  b.word("--model", o.model, "preset or JSON file (default reference-13b)", "NAME|FILE");
  b.word("--cluster", o.cluster, "preset or JSON file (default reference-13b)", "NAME|FILE");
  app.add_option("--set", o.sets, "change a field of the model or cluster; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_plan(CLI::App& app, options& o) {
  CLI::App* sub = app.add_subcommand("plan", "plan one batch: packs, CP sizes, micro-batches");
  builder b(*sub, o);
  add_sequence_options(b, o);
  b.integer("--ranks", o.ranks, "ranks of the DPxCP domain, dp * cp")->required();
  b.integer("--max-tokens-per-rank", o.max_tokens_per_rank,
            "padded tokens that one rank can hold in a micro-batch")
      ->required();
  add_job_options(b, o);
  add_spec_options(*sub, b, o);
  b.word("--packer", o.packer, "how to plan (default dynamic_cp; see presets)", "NAME");
  b.integer("--micro-batches", o.micro_batches, "fix M (default: chosen)");
  b.word("--out", o.out, "write the plan as JSON", "FILE");
  b.flag("--json", o.json, "print the plan as JSON instead of the report");
  b.flag("--verbose,-v", o.verbose, "list every micro-batch");
  sub->callback([&o] { o.command = command::plan; });
}

void add_check(CLI::App& app, options& o) {
  CLI::App* sub = app.add_subcommand("check", "validate and simulate a plan file");
  builder b(*sub, o);
  sub->add_option("plan", o.plan_file, "plan file; - reads standard input")
      ->type_name("PLAN.json")
      ->required();
  add_job_options(b, o);
  add_spec_options(*sub, b, o);
  b.flag("--json", o.json, "print verdict, times and peaks as JSON");
  b.flag("--verbose,-v", o.verbose, "list every micro-batch");
  sub->callback([&o] { o.command = command::check; });
}

void add_presets(CLI::App& app, options& o) {
  CLI::App* sub = app.add_subcommand("presets", "list models, clusters and packers");
  builder b(*sub, o);
  sub->add_option("name", o.presets_name, "show the fields of one model or cluster")
      ->type_name("NAME");
  b.flag("--json", o.json, "print JSON, a form that --model and --cluster read");
  sub->callback([&o] { o.command = command::presets; });
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
  CLI::App app{"Plans a batch of sequences for dynamic context parallelism.\n"
               "Exit status: 0 valid, 1 infeasible or invalid, 2 usage.",
               "dyncp-plan"};
  app.require_subcommand(1);
  app.set_version_flag("--version",
                       "dyncp-plan " + std::to_string(DYNCP_VERSION_MAJOR) + "." +
                           std::to_string(DYNCP_VERSION_MINOR) + "." +
                           std::to_string(DYNCP_VERSION_PATCH));
  add_plan(app, out.options);
  add_check(app, out.options);
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
