// SPDX-License-Identifier: Apache-2.0
#include "demos.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>

namespace {

constexpr const char* usage =
    "usage: megatron_style [parity|race|plan] [option...]\n"
    "  parity   20 steps with each scheduler against one dense rank\n"
    "  race     the schedulers' virtual times against the simulator's\n"
    "  plan     planning ahead for a large job, without training it\n"
    "Without a word all three run.\n"
    "  --ranks N   dp * cp (4)          --cp N      static CP size (4)\n"
    "  --pp N      stages (2)           --vpp N     chunks a stage: interleaved if over 1 (1)\n"
    "  --tp N      tensor ranks (1)     --steps N   (20)\n"
    "  --batch N   samples a step (24)\n"
    "  --float     parity in float instead of double\n"
    "  --mpi       parity with this process as one rank of MPI: mpirun -n RANKS*PP*TP\n"
    "  --help      this text\n";

// Each rank is a thread with a model of its own, and every sample is trained on a dense rank too.
constexpr std::int32_t most_ranks = 256;
constexpr std::int32_t most_samples = 1 << 16;

struct command_line {
  std::string what;
  megatron_style::demo_options demo;
  bool sized = false;  // sizes were given: the race keeps to them
  bool help = false;
};

std::int32_t number(const std::string& option, const std::string& text, std::int32_t most) {
  std::int32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < 1 || value > most) {
    throw std::invalid_argument(option + " takes a number from 1 to " + std::to_string(most) +
                                ", not '" + text + "'");
  }
  return value;
}

void check(const command_line& line) {
  const megatron_style::demo_options& demo = line.demo;
  const std::int64_t ranks =
      std::int64_t{demo.world.domain} * demo.world.stages * demo.world.tp;
  if (ranks > most_ranks) {
    throw std::invalid_argument("--ranks * --pp * --tp are " + std::to_string(ranks) +
                                " ranks; at most " + std::to_string(most_ranks) + " run here");
  }
  const std::int64_t samples = std::int64_t{demo.steps} * demo.batch;
  if (samples > most_samples) {
    throw std::invalid_argument("--steps * --batch are " + std::to_string(samples) +
                                " samples; at most " + std::to_string(most_samples));
  }
  if (demo.mpi && demo.single) throw std::invalid_argument("--mpi runs in double, not --float");
  if ((demo.mpi || demo.single) && line.what != "parity") {
    throw std::invalid_argument("--mpi and --float go with parity, not " + line.what);
  }
  if (line.what == "plan" && line.sized) {
    throw std::invalid_argument("plan has a job of its own and takes no sizes");
  }
}

command_line parse(int argc, char** argv) {
  command_line out;
  megatron_style::demo_options& demo = out.demo;
  struct size_option {
    const char* name;
    std::int32_t* place;
    std::int32_t most;
  };
  const size_option sizes[] = {
      {"--ranks", &demo.world.domain, most_ranks}, {"--cp", &demo.static_cp, most_ranks},
      {"--pp", &demo.world.stages, most_ranks},    {"--vpp", &demo.world.chunks, most_ranks},
      {"--tp", &demo.world.tp, most_ranks},        {"--steps", &demo.steps, most_samples},
      {"--batch", &demo.batch, most_samples}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") {
      out.help = true;
    } else if (word == "parity" || word == "race" || word == "plan") {
      out.what = word;
    } else if (word == "--float") {
      demo.single = true;
    } else if (word == "--mpi") {
      demo.mpi = true;
    } else {
      const auto size = std::find_if(std::begin(sizes), std::end(sizes),
                                     [&](const size_option& s) { return word == s.name; });
      if (size == std::end(sizes)) throw std::invalid_argument("unknown: " + word + "\n" + usage);
      if (i + 1 == argc) throw std::invalid_argument(word + " needs a number");
      *size->place = number(word, argv[++i], size->most);
      out.sized = true;
    }
  }
  if (out.what.empty() && (demo.mpi || demo.single)) out.what = "parity";
  check(out);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const command_line line = parse(argc, argv);
    if (line.help) {
      std::fputs(usage, stdout);
      return 0;
    }
    const megatron_style::demo_options& demo = line.demo;
    if (demo.mpi) return megatron_style::show_parity(demo);
    int failed = 0;
    if (line.what.empty() || line.what == "parity") {
      failed += megatron_style::show_parity(demo);
      if (!line.sized && !demo.single) {
        megatron_style::demo_options interleaved = demo;
        interleaved.world.chunks = 2;
        failed += megatron_style::show_parity(interleaved);
      }
    }
    if (line.what.empty() || line.what == "race") {
      megatron_style::demo_options sizes = demo;
      if (!line.sized) {
        sizes.world = {8, 2, 1, 1};
        sizes.static_cp = 8;
        sizes.steps = 4;
        sizes.batch = 96;
      }
      failed += megatron_style::show_race(sizes);
    }
    if (line.what.empty() || line.what == "plan") failed += megatron_style::show_planning();
    return failed == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
