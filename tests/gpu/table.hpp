// SPDX-License-Identifier: Apache-2.0
#pragma once

// How fast the kernels are: the rows of the one table that tests/gpu/check.sh prints.
//
// Work is queued on one stream and waited for by asking the device, the host's clock around it:
// `samples` samples of as many repetitions as last `sample_s`, the median of them. TFLOP/s of
// attention count 4 * dim * pairs for a forward pass and 10 * dim * pairs for a backward one, per
// query head, pairs being those that the causal mask shows. GB/s count what has to be read and
// written once.

#include <dyncp/attention/attention_step.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cuda/attention.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/thd.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_layout.hpp>
#include <dyncp/thd/ring_steps.hpp>
#include <dyncp/thd/thd_view.hpp>

#include "support/random.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

/// `name` is what the result of the expression holds; an error returns from the function.
#define DYNCP_LET(name, ...)                 \
  auto name##_result = (__VA_ARGS__);        \
  if (!name##_result) {                      \
    return std::move(name##_result).error(); \
  }                                          \
  auto& name = *name##_result

namespace dyncp_test {

/// One line of the table. `goal` is in the unit of `value`, 0 for none.
struct speed {
  std::string what;
  std::string of;
  double value = 0;
  std::string unit;
  double goal = 0;
};

/// The sizes of the real table; the emulator takes small ones.
struct speed_sizes {
  std::int32_t dim = 128;
  std::int32_t q_heads = 32;
  std::int32_t group = 8;  ///< query heads for each key head where heads are grouped
  std::int32_t short_tokens = 4096;
  std::int32_t long_tokens = 16384;
  std::int32_t pack_tokens = 32768;
  std::int32_t rows = 65536;  ///< of a whole pack that is split and merged
  std::int64_t row_bytes = 8192;
  int launches = 2000;
  int samples = 5;
  double sample_s = 0.1;
};

class speed_table {
 public:
  explicit speed_table(dyncp::cuda::device& d, const speed_sizes& sizes = {})
      : device_(d), sizes_(sizes) {}

  [[nodiscard]] dyncp::result<std::vector<speed>> run() {
    auto stream = device_.make_stream();
    if (!stream) return std::move(stream).error();
    stream_ = stream->get();
    const std::int32_t heads = sizes_.q_heads;
    const std::int32_t grouped = heads / sizes_.group;
    const auto one = [](std::int32_t tokens) { return std::vector<std::int32_t>{tokens}; };
    const std::string tokens = " tokens";
    DYNCP_TRY(attention("1 x " + std::to_string(sizes_.short_tokens) + tokens,
                        one(sizes_.short_tokens), heads, heads, 0, 0));
    DYNCP_TRY(attention("1 x " + std::to_string(sizes_.long_tokens) + tokens,
                        one(sizes_.long_tokens), heads, heads, 300, 250));
    DYNCP_TRY(attention("1 x " + std::to_string(sizes_.long_tokens) + tokens,
                        one(sizes_.long_tokens), heads, grouped, 0, 0));
    const std::vector<std::int32_t> mixed = mixed_lengths(sizes_.pack_tokens);
    DYNCP_TRY(attention("pack of " + std::to_string(mixed.size()) + ", " +
                            std::to_string(sizes_.pack_tokens) + tokens,
                        mixed, heads, grouped, 0, 0));
    const auto equal = std::vector<std::int32_t>(16, sizes_.pack_tokens / 16);
    DYNCP_TRY(attention("16 x " + std::to_string(equal[0]) + tokens, equal, heads, grouped, 0, 0));
    // The same bytes in rows of both widths: fewer would fit into the cache.
    DYNCP_TRY(rows(sizes_.rows, sizes_.row_bytes));
    DYNCP_TRY(rows(8 * sizes_.rows, sizes_.row_bytes / 8));
    DYNCP_TRY(partials());
    DYNCP_TRY(launches());
    return std::move(table_);
  }

  /// Lengths as in a corpus, long tail and all, that fill `tokens`.
  [[nodiscard]] static std::vector<std::int32_t> mixed_lengths(std::int32_t tokens) {
    random rng(7);
    std::vector<std::int32_t> lengths;
    for (std::int32_t left = tokens; left > 0; left -= lengths.back()) {
      // A fraction of the pack between 2^-9 and 2^-2, each power of two as likely.
      const double part = 1.0 / static_cast<double>(std::int64_t{1} << rng.between(2, 9));
      const auto length = static_cast<std::int32_t>((0.5 + 0.5 * rng.unit()) * part * tokens);
      lengths.push_back(std::clamp(length, 1, left));
    }
    return lengths;
  }

  /// Pairs of query and key that the causal mask shows.
  [[nodiscard]] static double causal_pairs(const std::vector<std::int32_t>& lengths) {
    double pairs = 0;
    for (const std::int32_t n : lengths) pairs += 0.5 * n * (n + 1.0);
    return pairs;
  }

 private:
  using T = dyncp::bfloat16;
  using buffer = dyncp::cuda::device::buffer;

  [[nodiscard]] static double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  [[nodiscard]] dyncp::result<void> finish() {
    for (;;) {
      const auto done = device_.poll(stream_);
      if (!done) return done.error();
      if (*done) return {};
    }
  }

  /// Seconds that one f() takes, which queues work: median of the samples.
  template <class F>
  [[nodiscard]] dyncp::result<double> seconds_of(F f) {
    const auto time = [&](int repetitions) -> dyncp::result<double> {
      DYNCP_TRY(finish());
      const double start = now_s();
      for (int i = 0; i < repetitions; ++i) DYNCP_TRY(f());
      DYNCP_TRY(finish());
      return (now_s() - start) / repetitions;
    };
    for (int i = 0; i < 2; ++i) DYNCP_TRY(f());
    const auto once = time(1);
    if (!once) return once.error();
    const int repetitions =
        std::clamp(static_cast<int>(sizes_.sample_s / std::max(*once, 1e-9)), 1, 1000);
    std::vector<double> all;
    for (int i = 0; i < sizes_.samples; ++i) {
      const auto each = time(repetitions);
      if (!each) return each.error();
      all.push_back(*each);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }

  void add(std::string what, std::string of, double value, const char* unit, double goal = 0) {
    table_.push_back({std::move(what), std::move(of), value, unit, goal});
  }

  /// Device memory with numbers between -1 and 1.
  template <class V>
  [[nodiscard]] dyncp::result<buffer> random_memory(std::int64_t count) {
    constexpr std::int64_t block = 1 << 20;
    const auto bytes = count * static_cast<std::int64_t>(sizeof(V));
    const std::int64_t staged = std::min(bytes, block * static_cast<std::int64_t>(sizeof(V)));
    auto memory = device_.allocate(bytes);
    if (!memory) return memory;
    auto host = device_.allocate_staging(staged);
    if (!host) return std::move(host).error();
    random rng(3);
    auto* const values = static_cast<V*>(host->data());
    for (std::int64_t i = 0; i < staged / static_cast<std::int64_t>(sizeof(V)); ++i) {
      values[i] = static_cast<V>(static_cast<float>(2 * rng.unit() - 1));
    }
    auto* const to = static_cast<std::byte*>(memory->data());
    DYNCP_TRY(device_.upload(to, host->data(), staged, stream_));
    for (std::int64_t at = staged; at < bytes; at += staged) {
      DYNCP_TRY(device_.copy(to + at, to, std::min(staged, bytes - at), stream_));
    }
    DYNCP_TRY(finish());
    return memory;
  }

  template <class V>
  [[nodiscard]] dyncp::result<buffer> uploaded(const std::vector<V>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(V));
    auto memory = device_.allocate(bytes);
    if (!memory) return memory;
    auto host = device_.allocate_staging(bytes);
    if (!host) return std::move(host).error();
    std::memcpy(host->data(), values.data(), static_cast<std::size_t>(bytes));
    DYNCP_TRY(device_.upload(memory->data(), host->data(), bytes, stream_));
    DYNCP_TRY(finish());
    return memory;
  }

  template <class V>
  [[nodiscard]] static dyncp::thd_view<V> view(buffer& memory, std::int64_t width) {
    return {static_cast<V*>(memory.data()), width};
  }

  [[nodiscard]] dyncp::result<void> attention(const std::string& pack,
                                              const std::vector<std::int32_t>& lengths,
                                              std::int32_t q_heads, std::int32_t kv_heads,
                                              double forward_goal, double backward_goal) {
    const std::int32_t dim = sizes_.dim;
    const dyncp::attention_shape shape{q_heads, kv_heads, dim, dim, dyncp::default_scale(dim)};
    std::vector<dyncp::attention_segment> segments;
    std::int32_t rows = 0;
    for (const std::int32_t n : lengths) {
      segments.push_back({rows, n, rows, n});
      rows += n;
    }
    const std::int64_t q_width = std::int64_t{q_heads} * dim;
    const std::int64_t kv_width = std::int64_t{kv_heads} * dim;
    DYNCP_LET(table, uploaded(segments));
    DYNCP_LET(q, random_memory<T>(rows * q_width));
    DYNCP_LET(k, random_memory<T>(rows * kv_width));
    DYNCP_LET(v, random_memory<T>(rows * kv_width));
    DYNCP_LET(dout, random_memory<T>(rows * q_width));
    DYNCP_LET(out, device_.allocate(rows * q_width * 4));
    DYNCP_LET(rounded, device_.allocate(rows * q_width * 2));
    DYNCP_LET(lse, device_.allocate(std::int64_t{rows} * q_heads * 4));
    DYNCP_LET(delta, device_.allocate(std::int64_t{rows} * q_heads * 4));
    DYNCP_LET(dq, device_.allocate(rows * q_width * 4));
    DYNCP_LET(dk, device_.allocate(rows * kv_width * 4));
    DYNCP_LET(dv, device_.allocate(rows * kv_width * 4));
    for (auto* const gradient : {&dq, &dk, &dv}) {
      DYNCP_TRY(device_.fill_zero(gradient->data(), gradient->bytes(), stream_));
    }

    const dyncp::attention_step step{
        {static_cast<const dyncp::attention_segment*>(table.data()), segments.size()},
        dyncp::attention_mask::causal,
        rows,
        rows};
    const dyncp::attention_operands<T> in{view<const T>(q, q_width), view<const T>(k, kv_width),
                                          view<const T>(v, kv_width)};
    const dyncp::attention_partial<T> part{view<float>(out, q_width), view<float>(lse, q_heads)};
    const double flops = 4.0 * dim * q_heads * causal_pairs(lengths);
    const std::string of =
        pack + ", heads " + std::to_string(q_heads) + ":" + std::to_string(kv_heads);

    dyncp::cuda::attention<T> fixed(device_);
    DYNCP_LET(forward,
              seconds_of([&] { return fixed.forward(device_, stream_, shape, step, in, part); }));
    add("attention forward", of, flops / forward * 1e-12, "TFLOP/s", forward_goal);

    DYNCP_TRY(fixed.convert(device_, stream_, rows, q_width, view<const float>(out, q_width),
                            view<T>(rounded, q_width)));
    DYNCP_TRY(fixed.delta(device_, stream_, shape, step, view<const T>(rounded, q_width),
                          view<const T>(dout, q_width), view<float>(delta, q_heads)));
    const dyncp::attention_gradients<T> io{in.q,
                                           in.k,
                                           in.v,
                                           view<const T>(dout, q_width),
                                           view<const float>(lse, q_heads),
                                           view<const float>(delta, q_heads),
                                           view<float>(dq, q_width),
                                           view<float>(dk, kv_width),
                                           view<float>(dv, kv_width)};
    DYNCP_LET(backward,
              seconds_of([&] { return fixed.backward(device_, stream_, shape, step, io); }));
    add("attention backward", of, 2.5 * flops / backward * 1e-12, "TFLOP/s", backward_goal);
    dyncp::cuda::attention<T> any(device_, {.deterministic = false});
    DYNCP_LET(any_order,
              seconds_of([&] { return any.backward(device_, stream_, shape, step, io); }));
    add("attention backward, any order", of, 2.5 * flops / any_order * 1e-12, "TFLOP/s",
        backward_goal);
    return finish();
  }

  /// Split, merge and chunks of a pack of two ranks, beside a copy of as many bytes.
  [[nodiscard]] dyncp::result<void> rows(std::int32_t rows, std::int64_t width) {
    std::vector<std::int64_t> lengths;
    for (const std::int32_t n : mixed_lengths(rows - rows / 16)) lengths.push_back(n);
    auto layout = dyncp::pack_layout::make(lengths, dyncp::layout_kind::zigzag, 2,
                                           dyncp::padding_rule{.zigzag = true});
    if (!layout) return std::move(layout).error();
    dyncp::pack_view pack = layout->view();
    const auto entries = static_cast<std::size_t>(pack.sequences) + 1;
    DYNCP_LET(real, uploaded(std::vector<std::int32_t>(pack.cu_real, pack.cu_real + entries)));
    DYNCP_LET(padded,
              uploaded(std::vector<std::int32_t>(pack.cu_padded, pack.cu_padded + entries)));
    const std::int32_t sequence_rows = pack.sequence_rows();
    pack.cu_real = static_cast<const std::int32_t*>(real.data());
    pack.cu_padded = static_cast<const std::int32_t*>(padded.data());
    const std::int64_t bytes = pack.local_rows() * width;
    DYNCP_LET(whole, random_memory<T>(pack.tokens * width / 2));
    DYNCP_LET(local, random_memory<T>(bytes / 2));
    DYNCP_LET(other, device_.allocate(bytes));
    const std::string of =
        std::to_string(bytes >> 20) + " MiB in rows of " + std::to_string(width) + " bytes";
    const auto give = [&](const char* what, double seconds, std::int64_t moved, double goal) {
      add(what, of, 2e-9 * static_cast<double>(moved) / seconds, "GB/s", goal);
      return 2e-9 * static_cast<double>(moved) / seconds;
    };
    DYNCP_LET(copy, seconds_of([&] {
                return device_.copy(other.data(), local.data(), bytes, stream_);
              }));
    const double goal = 0.85 * give("copy on the device", copy, bytes, 0);
    DYNCP_LET(split, seconds_of([&] {
                return dyncp::cuda::split_rows(device_, stream_, pack, 0, whole.data(),
                                               local.data(), width);
              }));
    give("split", split, bytes, goal);
    DYNCP_LET(merge, seconds_of([&] {
                return dyncp::cuda::merge_rows(device_, stream_, pack, 0, local.data(),
                                               whole.data(), width);
              }));
    give("merge", merge, bytes, goal);
    DYNCP_LET(take, seconds_of([&] {
                return dyncp::cuda::take_back(device_, stream_, pack, 0, sequence_rows,
                                              local.data(), other.data(), width);
              }));
    give("second chunks taken", take, sequence_rows / 4 * width, 0);
    return finish();
  }

  /// Merge of two partials, delta and the cast of the output.
  [[nodiscard]] dyncp::result<void> partials() {
    const std::int32_t rows = sizes_.long_tokens;
    const std::int32_t heads = sizes_.q_heads;
    const std::int64_t width = std::int64_t{heads} * sizes_.dim;
    const dyncp::attention_shape shape{heads, heads, sizes_.dim, sizes_.dim, 1.0};
    DYNCP_LET(table, uploaded(std::vector<dyncp::attention_segment>{{0, rows, 0, rows}}));
    const dyncp::attention_step step{
        {static_cast<const dyncp::attention_segment*>(table.data()), 1},
        dyncp::attention_mask::full,
        rows,
        rows};
    DYNCP_LET(a, random_memory<float>(rows * width));
    DYNCP_LET(b, random_memory<float>(rows * width));
    DYNCP_LET(a_lse, random_memory<float>(std::int64_t{rows} * heads));
    DYNCP_LET(b_lse, random_memory<float>(std::int64_t{rows} * heads));
    DYNCP_LET(out, random_memory<T>(rows * width));
    DYNCP_LET(dout, random_memory<T>(rows * width));
    dyncp::cuda::attention<T> kernels(device_);
    const std::string of = std::to_string(rows) + " rows, " + std::to_string(heads) + " heads";
    const double elements = static_cast<double>(rows) * static_cast<double>(width);
    const double sums = static_cast<double>(rows) * heads;
    DYNCP_LET(merge, seconds_of([&] {
                return kernels.merge(device_, stream_, shape, step,
                                     {view<float>(a, width), view<float>(a_lse, heads)},
                                     {view<float>(b, width), view<float>(b_lse, heads)});
              }));
    add("merge of partials", of, (12 * elements + 12 * sums) / merge * 1e-9, "GB/s");
    DYNCP_LET(delta, seconds_of([&] {
                return kernels.delta(device_, stream_, shape, step, view<const T>(out, width),
                                     view<const T>(dout, width), view<float>(a_lse, heads));
              }));
    add("delta", of, (4 * elements + 4 * sums) / delta * 1e-9, "GB/s");
    DYNCP_LET(cast, seconds_of([&] {
                return kernels.convert(device_, stream_, rows, width, view<const float>(a, width),
                                       view<T>(out, width));
              }));
    add("cast to bfloat16", of, 6 * elements / cast * 1e-9, "GB/s");
    return finish();
  }

  /// Kernels that do nothing to speak of, one behind the other.
  [[nodiscard]] dyncp::result<void> launches() {
    DYNCP_LET(a, random_memory<float>(4));
    dyncp::cuda::attention<float> kernels(device_);
    auto* const x = static_cast<float*>(a.data());
    const auto queue = [&]() -> dyncp::result<void> {
      for (int i = 0; i < sizes_.launches; ++i) DYNCP_TRY(kernels.add(device_, stream_, x, x, 4));
      return {};
    };
    DYNCP_TRY(queue());
    std::vector<double> host;
    std::vector<double> all;
    for (int i = 0; i < sizes_.samples; ++i) {
      DYNCP_TRY(finish());
      const double start = now_s();
      DYNCP_TRY(queue());
      host.push_back(now_s() - start);
      DYNCP_TRY(finish());
      all.push_back(now_s() - start);
    }
    std::sort(host.begin(), host.end());
    std::sort(all.begin(), all.end());
    const std::string of = std::to_string(sizes_.launches) + " small kernels";
    const auto each = [&](const std::vector<double>& times) {
      return times[times.size() / 2] / sizes_.launches * 1e6;
    };
    add("launch, on the host", of, each(host), "us");
    add("launch, until done", of, each(all), "us");
    return {};
  }

  dyncp::cuda::device& device_;
  speed_sizes sizes_;
  dyncp::cuda::stream stream_ = nullptr;
  std::vector<speed> table_;
};

}  // namespace dyncp_test

#undef DYNCP_LET
