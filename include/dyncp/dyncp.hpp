// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/core/version.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/limits.hpp>
#include <dyncp/problem/model_spec.hpp>
#include <dyncp/problem/parallel_spec.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/one_f_one_b.hpp>
#include <dyncp/sim/priced_plan.hpp>
#include <dyncp/sim/schedule.hpp>
#include <dyncp/sim/simulator.hpp>
