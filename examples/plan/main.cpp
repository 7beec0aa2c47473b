// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"
#include "commands.hpp"

#include <cstdio>
#include <exception>
#include <new>

namespace {

int run(int argc, char** argv) {
  const tool::parsed_command_line line = tool::parse_command_line(argc, argv);
  if (line.exit_status >= 0) return line.exit_status;
  switch (line.options.command) {
    case tool::command::plan: return tool::run_plan(line.options);
    case tool::command::compare: return tool::run_compare(line.options);
    case tool::command::check: return tool::run_check(line.options);
    case tool::command::presets: return tool::run_presets(line.options);
    case tool::command::generate: return tool::run_generate(line.options);
    case tool::command::describe: return tool::run_describe(line.options);
    case tool::command::none: break;
  }
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int status = run(argc, argv);
    // Output that got lost must not look like success.
    if (std::fflush(stdout) == 0) return status;
    std::fputs("dyncp-plan: io_error: cannot write standard output\n", stderr);
    return 2;
  } catch (const std::bad_alloc&) {
    std::fputs("dyncp-plan: out of memory\n", stderr);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dyncp-plan: %s\n", e.what());
  }
  return 1;
}
