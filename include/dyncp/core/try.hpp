// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

// Evaluates a result<T> and returns its error from the enclosing function, if it holds one. For
// the runtime, where a chain of device and fabric calls stops at the first that fails.
#define DYNCP_TRY(expression)                              \
  do {                                                     \
    if (auto dyncp_result = (expression); !dyncp_result) { \
      return std::move(dyncp_result).error();              \
    }                                                      \
  } while (false)
