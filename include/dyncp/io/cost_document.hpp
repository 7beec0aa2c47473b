// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cost/cost_fitter.hpp>
#include <dyncp/cost/fitted_cost.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/io/json_writer.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The names of the file formats, the values of their key "format".
inline constexpr std::string_view cost_format = "dyncp-cost-1";
inline constexpr std::string_view cost_records_format = "dyncp-cost-records-1";

namespace detail {

inline void write_coefficients(json_writer& w, std::string_view key, const cost_coefficients& k) {
  w.begin_object(key, json_layout::row);
  w.member("fixed_s", k.fixed_s);
  w.member("per_token_s", k.per_token_s);
  w.member("per_square_s", k.per_square_s);
  w.member("per_mean_length_s", k.per_mean_length_s);
  w.begin_array("hop_s").value(k.hop_s[0]).value(k.hop_s[1]).end();
  w.begin_array("hop_per_token_s").value(k.hop_per_token_s[0]).value(k.hop_per_token_s[1]).end();
  w.member("overlap", k.overlap);
  w.end();
}

}  // namespace detail

/// A fitted cost model as JSON: format, virtual_stages, transfer_s, transfer_per_token_s and
/// `classes`, each with the coefficients of `forward` and `backward`; arrays over links are
/// [nvlink, network]. Doubles are written so that they read back equal: a plan made from the file
/// is the plan made from the model.
[[nodiscard]] inline std::string to_json(const fitted_cost& cost) {
  json_writer w;
  w.begin_object();
  w.member("format", cost_format);
  w.member("virtual_stages", cost.virtual_stages());
  w.member("transfer_s", cost.transfer_s());
  w.member("transfer_per_token_s", cost.transfer_per_token_s());
  w.begin_array("classes");
  for (const pass_coefficients& k : cost.classes()) {
    w.begin_object();
    detail::write_coefficients(w, "forward", k.forward);
    detail::write_coefficients(w, "backward", k.backward);
    w.end();
  }
  w.end();
  w.end();
  return w.take();
}

/// Records of one pass on one class of stages as JSON, one a line.
[[nodiscard]] inline std::string to_json(const std::vector<cost_record>& records) {
  json_writer w;
  w.begin_object();
  w.member("format", cost_records_format);
  w.begin_array("records");
  for (const cost_record& r : records) {
    w.begin_object(json_layout::row);
    w.member("tokens", r.tokens);
    w.member("squares", r.squares);
    w.member("c", r.c);
    w.member("link", to_string(r.over));
    w.member("seconds", r.seconds);
    w.end();
  }
  w.end();
  w.end();
  return w.take();
}

}  // namespace v0
}  // namespace dyncp
