// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/ticks.hpp>
#include <dyncp/plan/schedule.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <concepts>

namespace dyncp {
inline namespace v0 {

/// Turns a priced plan into the time from the first forward to the last backward.
///
/// Requirements: a pure function; ticks in, ticks out.
///
/// | model              | what it does                                         | cost             |
/// | ------------------ | ---------------------------------------------------- | ---------------- |
/// | `event_simulator`  | every operation of every rank and stage; exact       | O(R * M * pp*vpp)|
/// | `closed_form`      | W * (M*V + p - 1), equation 1: for equal costs only  | O(groups)        |
template <class Simulator>
concept simulator = requires(const Simulator& sim, const priced_plan& plan, pipeline pipe) {
  { sim.makespan(plan, pipe) } -> std::same_as<ticks>;
};

}  // namespace v0
}  // namespace dyncp
