// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/config.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/core/version.hpp>
#include <dyncp/thd/bucket.hpp>
#include <dyncp/thd/convert.hpp>
#include <dyncp/thd/cu_seqlens.hpp>
#include <dyncp/thd/index_map.hpp>
#include <dyncp/thd/labels.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/owner.hpp>
#include <dyncp/thd/pack_layout.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/positions.hpp>
#include <dyncp/thd/response.hpp>
#include <dyncp/thd/ring_steps.hpp>
#include <dyncp/thd/slot.hpp>
#include <dyncp/thd/valid_counts.hpp>
#include <dyncp/thd/zigzag.hpp>
