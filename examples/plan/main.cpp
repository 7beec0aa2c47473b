// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"
#include "commands.hpp"

#include <cstdio>
#include <exception>
#include <new>

int main(int argc, char** argv) {
  try {
    const tool::parsed_command_line line = tool::parse_command_line(argc, argv);
    if (line.exit_status >= 0) return line.exit_status;
    switch (line.options.command) {
      case tool::command::plan: return tool::run_plan(line.options);
      case tool::command::compare: return tool::run_compare(line.options);
      case tool::command::generate: return tool::run_generate(line.options);
      case tool::command::describe: return tool::run_describe(line.options);
      case tool::command::check: return tool::run_check(line.options);
      case tool::command::presets: return tool::run_presets(line.options);
      case tool::command::none: break;
    }
  } catch (const std::bad_alloc&) {
    std::fputs("dyncp-plan: out of memory\n", stderr);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dyncp-plan: %s\n", e.what());
  }
  return 1;
}
