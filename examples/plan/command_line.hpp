// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"

namespace tool {

struct parsed_command_line {
  tool::options options;
  int exit_status = -1;  ///< 0 or more: leave with it; help or an error has been printed
};

/// Reads the command line; prints help on stdout, mistakes on stderr.
[[nodiscard]] parsed_command_line parse_command_line(int argc, char** argv);

}  // namespace tool
