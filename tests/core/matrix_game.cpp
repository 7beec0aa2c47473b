// SPDX-License-Identifier: Apache-2.0
#include "support/random.hpp"

#include <dyncp/core/matrix_game.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using table = std::vector<std::vector<double>>;

double value_of(const table& rows) {
  dyncp::matrix_game game(rows.front().size());
  for (const auto& row : rows) game.add(row);
  return game.value();
}

// The most that the rows make of a mix: no value is above it.
double worst(const table& rows, const std::vector<double>& mix) {
  double most = 0;
  for (const auto& row : rows) {
    double sum = 0;
    for (std::size_t j = 0; j < row.size(); ++j) sum += row[j] * mix[j];
    most = std::max(most, sum);
  }
  return most;
}

table transposed(const table& rows) {
  table out(rows.front().size(), std::vector<double>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < rows[i].size(); ++j) out[j][i] = 1 - rows[i][j];
  }
  return out;
}

}  // namespace

TEST_CASE("games whose values are known by hand") {
  CHECK(value_of({{1, 0}, {0, 1}}) == doctest::Approx(0.5));                       // pennies
  CHECK(value_of({{0.5, 1, 0}, {0, 0.5, 1}, {1, 0, 0.5}}) == doctest::Approx(0.5));  // scissors
  CHECK(value_of({{0.3, 0.7}}) == doctest::Approx(0.3));
  CHECK(value_of({{0.3}, {0.8}, {0.1}}) == doctest::Approx(0.8));
  // Saddle: row 1 and column 0.
  CHECK(value_of({{0.2, 0.9}, {0.4, 0.6}}) == doctest::Approx(0.4));
  // Mixed 2 x 2: (ad - bc)/(a + d - b - c) = (0.8*0.7 - 0.1*0.3)/(0.8 + 0.7 - 0.1 - 0.3).
  CHECK(value_of({{0.8, 0.1}, {0.3, 0.7}}) == doctest::Approx(0.53 / 1.1));
  // Diagonal: 1 / sum of 1/d.
  CHECK(value_of({{0.5, 0, 0}, {0, 0.25, 0}, {0, 0, 1}}) == doctest::Approx(1.0 / 7));
  CHECK(dyncp::matrix_game(3).value() == 0);
}

TEST_CASE("the other player's game has the same value") {
  // Two mixes enclose the value: no mix of columns is better than it, none of rows. The second
  // player's game is the transposed one with signs turned; both values together are 1.
  const std::uint64_t seed = dyncp_test::seed_or(7);
  for (std::int64_t round = 0; round < dyncp_test::count_or(400); ++round) {
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    table rows(static_cast<std::size_t>(rng.between(1, 60)));
    const auto columns = static_cast<std::size_t>(rng.between(1, 12));
    const bool tied = rng.one_in(3);  // few distinct entries: degenerate dictionaries
    for (auto& row : rows) {
      for (std::size_t j = 0; j < columns; ++j) {
        row.push_back(static_cast<double>(rng.between(0, tied ? 2 : 1000)) / (tied ? 2 : 1000));
      }
    }
    dyncp::matrix_game game(columns);
    double before = 0;
    for (const auto& row : rows) {
      game.add(row);
      REQUIRE(game.value() >= before - 1e-6);  // rows only raise it
      before = game.value();
    }
    CHECK(value_of(rows) + value_of(transposed(rows)) == doctest::Approx(1).epsilon(1e-5));
    CHECK(worst(rows, game.mix()) == doctest::Approx(game.value()).epsilon(1e-5));
    table decisive;
    for (const std::size_t i : game.binding()) decisive.push_back(rows[i]);
    CHECK(decisive.size() <= columns);
    CHECK(value_of(decisive) == doctest::Approx(game.value()).epsilon(1e-5));
  }
}
