// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/packers/default_dynamic_cp.hpp>
#include <dyncp/packers/first_fit_decreasing.hpp>
#include <dyncp/packers/flexsp.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/packers/padded_bshd.hpp>
#include <dyncp/packers/relax.hpp>
#include <dyncp/packers/static_balanced.hpp>
#include <dyncp/packers/three_stage.hpp>
#include <dyncp/packers/three_stage_2959.hpp>
#include <dyncp/packers/verl.hpp>
#include <dyncp/packers/wlb_llm.hpp>
#include <dyncp/plan/validate.hpp>

#include <algorithm>
#include <set>
#include <vector>

namespace dyncp_test {

/// Promises that the originals of a baseline do not keep, and which it therefore may break.
template <class Packer>
std::set<dyncp::violation_kind> may_break() {
  return {};
}
template <>
inline std::set<dyncp::violation_kind> may_break<dyncp::verl>() {
  return {dyncp::violation_kind::over_limit, dyncp::violation_kind::over_sequence_cap};
}
template <>
inline std::set<dyncp::violation_kind> may_break<dyncp::verl_capped>() {
  return {dyncp::violation_kind::over_sequence_cap};
}
template <>
inline std::set<dyncp::violation_kind> may_break<dyncp::relax>() {
  return {dyncp::violation_kind::over_limit, dyncp::violation_kind::over_sequence_cap};
}
template <>
inline std::set<dyncp::violation_kind> may_break<dyncp::relax_capped>() {
  return {dyncp::violation_kind::over_sequence_cap};
}
template <>
inline std::set<dyncp::violation_kind> may_break<dyncp::three_stage_2959>() {
  return {dyncp::violation_kind::over_limit, dyncp::violation_kind::over_sequence_cap};
}

/// Calls `use.template operator()<Packer>()` for every baseline.
template <class Use>
void for_each_baseline(Use use) {
  use.template operator()<dyncp::packing_only>();
  use.template operator()<dyncp::static_balanced>();
  use.template operator()<dyncp::padded_bshd>();
  use.template operator()<dyncp::ffd>();
  use.template operator()<dyncp::mffd>();
  use.template operator()<dyncp::wlb_llm>();
  use.template operator()<dyncp::verl>();
  use.template operator()<dyncp::verl_capped>();
  use.template operator()<dyncp::relax>();
  use.template operator()<dyncp::relax_capped>();
  use.template operator()<dyncp::default_dynamic_cp>();
  use.template operator()<dyncp::three_stage>();
  use.template operator()<dyncp::three_stage_2959>();
  use.template operator()<dyncp::flexsp>();
}

}  // namespace dyncp_test
