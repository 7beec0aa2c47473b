// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/attention_shape.hpp>

#include <doctest/doctest.h>

#include <limits>

using namespace dyncp;

TEST_CASE("shapes that attention can have") {
  CHECK(validate({}));
  CHECK(validate({32, 8, 128, 128, default_scale(128)}));
  CHECK(validate({32, 1, 192, 128, default_scale(192)}));
  CHECK(attention_shape{32, 8, 128, 128, 1.0}.group() == 4);
  CHECK(default_scale(64) == 0.125);
}

TEST_CASE("shapes that it cannot have are named") {
  CHECK(validate({0, 1, 1, 1, 1.0}).error().code == errc::invalid_argument);
  CHECK(!validate({1, 0, 1, 1, 1.0}));
  CHECK(!validate({1, 1, 0, 1, 1.0}));
  CHECK(!validate({1, 1, 1, -4, 1.0}));
  const auto uneven = validate({6, 4, 64, 64, 0.125});
  REQUIRE(!uneven);
  CHECK(uneven.error().what == "6 query heads cannot share 4 key/value heads equally");
  CHECK(!validate({1, 1, 1, 1, std::numeric_limits<double>::infinity()}));
  CHECK(!validate({1, 1, 1, 1, std::numeric_limits<double>::quiet_NaN()}));
}
