// SPDX-License-Identifier: Apache-2.0
#include "demos.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

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
    "  --batch N   samples a step (24)  --float     instead of double\n"
    "  --mpi       parity with this process as one rank of MPI: mpirun -n RANKS*PP*TP\n";

struct command_line {
  std::string what;
  megatron_style::demo_options demo;
  bool sized = false;  // sizes were given: the race keeps to them
};

command_line parse(int argc, char** argv) {
  command_line out;
  const std::pair<const char*, std::int32_t*> numbers[] = {
      {"--ranks", &out.demo.world.domain}, {"--pp", &out.demo.world.stages},
      {"--vpp", &out.demo.world.chunks},   {"--tp", &out.demo.world.tp},
      {"--cp", &out.demo.static_cp},       {"--steps", &out.demo.steps},
      {"--batch", &out.demo.batch}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "parity" || word == "race" || word == "plan") {
      out.what = word;
      continue;
    }
    if (word == "--float" || word == "--mpi") {
      (word == "--mpi" ? out.demo.mpi : out.demo.single) = true;
      continue;
    }
    std::int32_t* number = nullptr;
    for (const auto& [name, place] : numbers) {
      if (word == name) number = place;
    }
    if (number == nullptr || i + 1 == argc) throw std::invalid_argument(usage);
    *number = std::atoi(argv[++i]);
    if (*number < 1) throw std::invalid_argument(word + " must be 1 or more");
    out.sized = true;
  }
  if (out.demo.mpi && (out.demo.single || (out.what != "" && out.what != "parity"))) {
    throw std::invalid_argument("--mpi goes with parity in double alone");
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const command_line line = parse(argc, argv);
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
