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
