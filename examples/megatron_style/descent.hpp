// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/parameters.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace megatron_style {

/// Gradient descent with momentum.
template <class T>
class descent {
 public:
  descent(parameter_set<T>& parameters, double rate, double momentum)
      : parameters_(&parameters),
        rate_(static_cast<T>(rate)),
        momentum_(static_cast<T>(momentum)),
        velocity_(parameters.values().size(), T{0}) {}

  void step() {
    const std::span<T> values = parameters_->values();
    const std::span<T> gradients = parameters_->gradients();
    for (std::size_t i = 0; i < values.size(); ++i) {
      velocity_[i] = momentum_ * velocity_[i] + gradients[i];
      values[i] -= rate_ * velocity_[i];
    }
  }

 private:
  parameter_set<T>* parameters_;
  T rate_;
  T momentum_;
  std::vector<T> velocity_;
};

}  // namespace megatron_style
