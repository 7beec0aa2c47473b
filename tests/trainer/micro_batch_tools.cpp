// SPDX-License-Identifier: Apache-2.0
// What layers and losses take of a micro-batch: its group and layout for as long as it runs, shares
// of fields, rotary positions, log-probabilities.
#include "support/random.hpp"

#include <dyncp/trainer/log_probs.hpp>
#include <dyncp/trainer/loss.hpp>
#include <dyncp/trainer/micro_batch_scope.hpp>
#include <dyncp/trainer/rope.hpp>
#include <dyncp/trainer/token_share.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

using dyncp::layout_kind;
using dyncp::packed_seq_params;

namespace {

packed_seq_params params_of(const std::vector<std::int64_t>& lengths, std::int32_t cp,
                            std::int32_t rank, layout_kind layout = layout_kind::zigzag) {
  std::vector<std::int64_t> ids(lengths.size());
  std::iota(ids.begin(), ids.end(), 0);
  return *dyncp::make_packed_seq_params(ids, lengths, {1, {0, cp}, rank, cp > 1 ? 0 : -1}, layout,
                                        {.zigzag = true});
}

/// token = 1000 * sequence + position.
std::vector<std::vector<std::int32_t>> samples_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::vector<std::int32_t>> out;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    out.emplace_back();
    for (std::int64_t p = 0; p < lengths[s]; ++p) {
      out.back().push_back(static_cast<std::int32_t>(1000 * static_cast<std::int64_t>(s) + p));
    }
  }
  return out;
}

}  // namespace

// Megatron-LM#5215: TE kept the last dynamic group. Relax restores once per step.
TEST_CASE("Megatron-LM#5215: cp 4, 1, 4 find 4, 1, 4; afterwards the old group is back") {
  const dyncp::group_handle before{9, {0, 8}, 3, 0};
  dyncp::cp_context context{before, layout_kind::contiguous, nullptr};
  for (const std::int32_t cp : {4, 1, 4}) {
    const auto params = params_of({8, 8}, cp, 0);
    const dyncp::micro_batch_scope scope(context, params);
    CHECK(context.group.size() == cp);
    CHECK(context.group == params.group);
    CHECK(context.layout == layout_kind::zigzag);
    CHECK(context.params == &params);
  }
  CHECK(context.group == before);
  CHECK(context.layout == layout_kind::contiguous);
  CHECK(context.params == nullptr);
}

TEST_CASE("group and layout are put back on a failure: exception, early return, nested scopes") {
  dyncp::cp_context context;
  const dyncp::cp_context empty = context;
  const auto outer = params_of({8}, 2, 1);
  const auto inner = params_of({8, 4}, 4, 2, layout_kind::contiguous);
  const auto layer = [&](int what) -> dyncp::result<void> {
    const dyncp::micro_batch_scope a(context, outer);
    {
      const dyncp::micro_batch_scope b(context, inner);
      if (what == 0) throw std::runtime_error("kernel");
      if (what == 1) return dyncp::make_error(dyncp::errc::timeout, "ring");
    }
    CHECK(context.params == &outer);
    CHECK(context.layout == layout_kind::zigzag);
    return {};
  };
  CHECK_THROWS(static_cast<void>(layer(0)));
  CHECK(context.params == empty.params);
  CHECK(context.group == empty.group);
  CHECK(!layer(1));
  CHECK(context.group == empty.group);
  CHECK(layer(2));
  CHECK(context.group == empty.group);

  int size = 8;
  try {
    const dyncp::scoped_value<int> four(size, 4);
    CHECK(size == 4);
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
  }
  CHECK(size == 8);
}

TEST_CASE("verl#4250, slime#1135: tokens and labels of the shares are those of the sequences") {
  const std::vector<std::int64_t> lengths = {8, 5, 1, 13};
  const auto samples = samples_of(lengths);
  for (const layout_kind layout : {layout_kind::zigzag, layout_kind::contiguous}) {
    for (const std::int32_t cp : {1, 2, 4}) {
      std::map<std::int32_t, std::int32_t> label_of;  // token -> label
      for (std::int32_t rank = 0; rank < cp; ++rank) {
        const auto params = params_of(lengths, cp, rank, layout);
        const auto tokens = dyncp::cut_tokens<std::int32_t>(
            params, std::span<const std::vector<std::int32_t>>(samples), -7);
        const auto labels = dyncp::cut_labels<std::int32_t>(
            params, std::span<const std::vector<std::int32_t>>(samples), -1);
        REQUIRE(tokens);
        REQUIRE(labels);
        REQUIRE(tokens->size() == static_cast<std::size_t>(params.local_tokens()));
        for (std::size_t i = 0; i < tokens->size(); ++i) {
          if ((*tokens)[i] == -7) {
            CHECK((*labels)[i] == -1);
            continue;
          }
          CHECK(label_of.try_emplace((*tokens)[i], (*labels)[i]).second);
        }
      }
      CHECK(label_of.size() == 27);
      for (const auto& [token, label] : label_of) {
        const bool last = token % 1000 + 1 == lengths[static_cast<std::size_t>(token / 1000)];
        CHECK(label == (last ? -1 : token + 1));
      }
    }
  }
}

TEST_CASE("fields that do not fit the micro-batch are refused") {
  const auto params = params_of({4, 3}, 2, 0);
  const std::vector<std::vector<std::int32_t>> few = {{1, 2, 3, 4}};
  const std::vector<std::vector<std::int32_t>> longer = {{1, 2, 3, 4}, {1, 2, 3, 4}};
  for (const auto& bad : {few, longer}) {
    const auto tokens = dyncp::cut_tokens<std::int32_t>(
        params, std::span<const std::vector<std::int32_t>>(bad), 0);
    REQUIRE(!tokens);
    CHECK(tokens.error().code == dyncp::errc::invalid_argument);
  }
}

// Megatron-LM#5243: cu [0,4,8], cp 2, rank 0 holds rows 0, 3, 4, 7 at positions 0, 3, 0, 3.
TEST_CASE("Megatron-LM#5243: a rotated share is the share of rotated sequences, and turns back") {
  const std::vector<std::int64_t> lengths = {4, 4, 7};
  for (const auto pairs : {dyncp::rope_pairs::halves, dyncp::rope_pairs::interleaved}) {
    const auto table = dyncp::rope_table::make({.dim = 6, .base = 500, .pairs = pairs}, 16);
    REQUIRE(table);
    constexpr std::int32_t heads = 2;
    constexpr std::int32_t dim = 8;  // the last two of a head are left as they are
    const auto element = [](std::int32_t s, std::int32_t p, std::int32_t i) {
      return std::sin(1.0 + s * 37 + p * 5 + i);
    };
    // By definition, in complex numbers.
    const auto rotated = [&](std::int32_t s, std::int32_t p, std::int32_t i) {
      const std::int32_t in_head = i % dim;
      if (in_head >= 6) return element(s, p, i);
      const bool halves = pairs == dyncp::rope_pairs::halves;
      const std::int32_t pair = halves ? in_head % 3 : in_head / 2;
      const bool second = halves ? in_head >= 3 : in_head % 2 == 1;
      const std::int32_t head = i - in_head;
      const double a = element(s, p, head + (halves ? pair : 2 * pair));
      const double b = element(s, p, head + (halves ? pair + 3 : 2 * pair + 1));
      const double angle = p * std::pow(500.0, -2.0 * pair / 6.0);
      return second ? a * std::sin(angle) + b * std::cos(angle)
                    : a * std::cos(angle) - b * std::sin(angle);
    };
    for (const std::int32_t cp : {1, 2, 4}) {
      for (std::int32_t rank = 0; rank < cp; ++rank) {
        const auto params = params_of(lengths, cp, rank);
        std::vector<double> x;
        for (std::int32_t i = 0; i < heads * dim; ++i) {
          const auto column = dyncp::cut_share<double>(
              params, 0.0, [&](std::int32_t s, std::int32_t p) { return element(s, p, i); });
          if (i == 0) x.resize(column.size() * heads * dim);
          for (std::size_t r = 0; r < column.size(); ++r) {
            x[r * heads * dim + static_cast<std::size_t>(i)] = column[r];
          }
        }
        const auto before = x;
        const dyncp::thd_view<double> view{x.data(), heads * dim};
        REQUIRE(dyncp::apply_rope(*table, params, view, heads, dim));
        for (std::int32_t i = 0; i < heads * dim; ++i) {
          const auto expected = dyncp::cut_share<double>(
              params, 0.0, [&](std::int32_t s, std::int32_t p) { return rotated(s, p, i); });
          for (std::size_t r = 0; r < expected.size(); ++r) {
            CHECK(x[r * heads * dim + static_cast<std::size_t>(i)] ==
                  doctest::Approx(expected[r]).epsilon(1e-12));
          }
        }
        REQUIRE(dyncp::apply_rope(*table, params, view, heads, dim,
                                  dyncp::rope_direction::backward));
        for (std::size_t i = 0; i < x.size(); ++i) {
          CHECK(x[i] == doctest::Approx(before[i]).epsilon(1e-12));
        }
      }
    }
  }
  const auto small = dyncp::rope_table::make({.dim = 2}, 4);
  REQUIRE(small);
  std::vector<double> x(64, 0.0);
  const dyncp::thd_view<double> view{x.data(), 2};
  CHECK(!dyncp::apply_rope(*small, params_of({7}, 1, 0), view, 1, 2));
  CHECK(!dyncp::rope_table::make({.dim = 3}, 4));
  CHECK(!dyncp::rope_table::make({.dim = 2, .base = 0}, 4));
}

TEST_CASE("log-probabilities: slices of the vocabulary merge to the whole, in any number") {
  dyncp_test::random rng(41);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> logits;
    for (int v = 0; v < 24; ++v) logits.push_back(40.0 * rng.unit() - 20.0);
    const std::int64_t label = rng.between(0, 23);
    double sum = 0;
    for (const double x : logits) sum += std::exp(x);
    double entropy = 0;
    for (const double x : logits) entropy -= std::exp(x) / sum * std::log(std::exp(x) / sum);
    const double expected = logits[static_cast<std::size_t>(label)] - std::log(sum);
    for (const std::size_t slices : {1, 2, 3, 8}) {
      dyncp::softmax_part total;
      const std::size_t width = 24 / slices;
      for (std::size_t t = 0; t < slices; ++t) {
        total = dyncp::merge(
            total, dyncp::softmax_of(std::span<const double>(logits).subspan(t * width, width),
                                     static_cast<std::int64_t>(t * width), label));
      }
      CHECK(total.log_prob() == doctest::Approx(expected).epsilon(1e-12));
      CHECK(total.entropy() == doctest::Approx(entropy).epsilon(1e-10));
    }
  }
}

// ms-swift#9380, #10085: ranks without a label; verl#6464: nothing at all.
TEST_CASE("ms-swift#9380, #10085: response sums over ranks are those of sequences, pads unread") {
  const std::vector<std::int64_t> lengths = {8, 12, 10, 9, 5};
  const std::vector<std::int32_t> responses = {5, 2, 1, 3, 0};
  const auto samples = samples_of(lengths);
  constexpr std::int64_t vocabulary = 7;
  const auto logit = [](std::int32_t s, std::int32_t p, std::int64_t v) {
    return std::cos(static_cast<double>(s * 11 + p * 3) + 1.3 * static_cast<double>(v));
  };
  const auto label = [](std::int32_t s, std::int32_t p) { return (s + 2 * p) % vocabulary; };
  std::vector<double> expected(5, 0.0);
  for (std::int32_t s = 0; s < 5; ++s) {
    const auto length = static_cast<std::int32_t>(lengths[static_cast<std::size_t>(s)]);
    const std::int32_t first = length - 1 - responses[static_cast<std::size_t>(s)];
    for (std::int32_t p = first; p < length - 1; ++p) {
      double sum = 0;
      for (std::int64_t v = 0; v < vocabulary; ++v) sum += std::exp(logit(s, p, v));
      expected[static_cast<std::size_t>(s)] += logit(s, p, label(s, p)) - std::log(sum);
    }
  }
  for (const std::int32_t cp : {1, 2, 4}) {
    std::vector<dyncp::loss_part> total(5);
    std::int32_t without = 0;
    for (std::int32_t rank = 0; rank < cp; ++rank) {
      const auto params = params_of(lengths, cp, rank);
      const auto labels = dyncp::cut_share<std::int32_t>(
          params, -1, [&](std::int32_t s, std::int32_t p) {
            return p + 1 < lengths[static_cast<std::size_t>(s)]
                       ? static_cast<std::int32_t>(label(s, p))
                       : -1;
          });
      std::vector<double> logits(labels.size() * vocabulary,
                                 std::numeric_limits<double>::quiet_NaN());
      for (std::int64_t v = 0; v < vocabulary; ++v) {
        const auto column = dyncp::cut_share<double>(
            params, std::numeric_limits<double>::quiet_NaN(),
            [&](std::int32_t s, std::int32_t p) { return logit(s, p, v); });
        for (std::size_t r = 0; r < column.size(); ++r) {
          logits[r * vocabulary + static_cast<std::size_t>(v)] = column[r];
        }
      }
      const auto parts = dyncp::softmax_rows<double>(params, logits, labels, vocabulary);
      REQUIRE(parts);
      const auto values = dyncp::label_log_probs(*parts);
      const auto sums = dyncp::response_sums(params, responses, values);
      std::int64_t mine = 0;
      for (std::size_t s = 0; s < 5; ++s) {
        total[s] += sums[s];
        mine += sums[s].tokens;
      }
      without += mine == 0 ? 1 : 0;
      CHECK(!dyncp::softmax_rows<double>(params, logits, labels, vocabulary + 1));
    }
    for (std::size_t s = 0; s < 5; ++s) {
      CHECK(total[s].tokens == responses[s]);
      CHECK(total[s].sum == doctest::Approx(expected[s]).epsilon(1e-12));
    }
    static_cast<void>(without);
  }
  // Each response token is visited once over the ranks, in its place.
  for (const std::int32_t cp : {1, 2, 4}) {
    std::map<std::pair<std::int32_t, std::int32_t>, int> seen;
    for (std::int32_t rank = 0; rank < cp; ++rank) {
      const auto params = params_of(lengths, cp, rank);
      for (std::int32_t s = 0; s < 5; ++s) {
        dyncp::for_each_response_row(params, s, responses[static_cast<std::size_t>(s)],
                                     [&](std::int32_t, std::int32_t t) { seen[{s, t}] += 1; });
      }
    }
    CHECK(seen.size() == 11);
    for (const auto& [key, n] : seen) {
      CHECK(n == 1);
      CHECK(key.second < responses[static_cast<std::size_t>(key.first)]);
    }
  }
}

TEST_CASE("the loss of a micro-batch: all tokens but the last of a sequence, once over the ranks") {
  const std::vector<std::int64_t> lengths = {7, 1, 12, 3};
  for (const std::int32_t cp : {1, 2, 4}) {
    dyncp::loss_part all;
    for (std::int32_t rank = 0; rank < cp; ++rank) {
      const packed_seq_params params = params_of(lengths, cp, rank);
      const auto losses = dyncp::cut_share<double>(
          params, std::numeric_limits<double>::quiet_NaN(), [&](std::int32_t s, std::int32_t p) {
            return static_cast<double>(1000 * s + p);
          });
      all += dyncp::local_loss<double>(params, losses);
    }
    // 0..5 of sequence 0, nothing of 1, 2000..2010 of 2, 3000 and 3001 of 3.
    CHECK(all.sum == 15.0 + (11 * 2000.0 + 55.0) + 6001.0);
    CHECK(all.tokens == 19);
  }
}
