// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <algorithm>

namespace megatron_style {

deviation run_result::worst() const noexcept {
  deviation out;
  for (const step_result& s : steps) {
    out.loss = std::max(out.loss, s.from_reference.loss);
    out.gradient = std::max(out.gradient, s.from_reference.gradient);
  }
  return out;
}

}  // namespace megatron_style
