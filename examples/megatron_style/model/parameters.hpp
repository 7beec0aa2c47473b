// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config.hpp"
#include "tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace megatron_style {

/// A weight matrix, or this rank's block of it: rows and columns from `row` and `col` on.
struct parameter {
  std::string name;
  std::int64_t full_rows = 0;
  std::int64_t full_cols = 0;
  std::int64_t row = 0;
  std::int64_t col = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::size_t offset = 0;  ///< in the arrays of its set

  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(rows * cols); }
};

/// Where the weights of one layer stand in their set.
struct block_parameters {
  std::size_t attention_norm = 0;  // (1, hidden)
  std::size_t wq = 0;              // (hidden, q width / tp)
  std::size_t wk = 0;              // (hidden, kv width / tp)
  std::size_t wv = 0;              // (hidden, kv width / tp)
  std::size_t wo = 0;              // (q width / tp, hidden)
  std::size_t ffn_norm = 0;        // (1, hidden)
  std::size_t gate = 0;            // (hidden, ffn / tp)
  std::size_t up = 0;              // (hidden, ffn / tp)
  std::size_t down = 0;            // (ffn / tp, hidden)
};

/// The weights of a model part with their gradients, each in one array: what the gradient
/// all-reduce and the optimizer work on.
///
/// Start values depend on name and place in the full matrix alone, so that every partition of the
/// model begins with the same weights.
template <class T>
class parameter_set {
 public:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  parameter_set(const model_config& config, const model_part& part);

  [[nodiscard]] std::span<const parameter> all() const noexcept { return parameters_; }
  [[nodiscard]] std::span<T> values() noexcept { return values_; }
  [[nodiscard]] std::span<T> gradients() noexcept { return gradients_; }
  void clear_gradients() { std::fill(gradients_.begin(), gradients_.end(), T{0}); }

  [[nodiscard]] const_matrix_map<T> value(std::size_t index) const {
    const parameter& p = parameters_[index];
    return {values_.data() + p.offset, p.rows, p.cols};
  }
  [[nodiscard]] matrix_map<T> gradient(std::size_t index) {
    const parameter& p = parameters_[index];
    return {gradients_.data() + p.offset, p.rows, p.cols};
  }

  /// Weights of layer `layer` of chunk `chunk` of this part.
  [[nodiscard]] const block_parameters& block(std::int32_t chunk, std::int32_t layer) const {
    return blocks_[static_cast<std::size_t>(chunk * layers_per_chunk_ + layer)];
  }
  [[nodiscard]] std::int32_t layers_per_chunk() const noexcept { return layers_per_chunk_; }
  /// Embedding and tied head, (vocabulary / tp, hidden): on the first and the last stage.
  [[nodiscard]] std::size_t embedding() const noexcept { return embedding_; }
  [[nodiscard]] std::size_t final_norm() const noexcept { return final_norm_; }  // (1, hidden)

 private:
  std::size_t add(std::string name, std::int64_t rows, std::int64_t cols);
  std::size_t add_row_cut(std::string name, std::int64_t rows, std::int64_t cols);
  std::size_t add_column_cut(std::string name, std::int64_t rows, std::int64_t cols);
  std::size_t place(parameter p);
  void initialize(std::uint64_t seed);

  model_part part_;
  std::int32_t layers_per_chunk_ = 0;
  std::vector<parameter> parameters_;
  std::vector<block_parameters> blocks_;  // (chunks, layers per chunk)
  std::size_t embedding_ = none;
  std::size_t final_norm_ = none;
  std::size_t size_ = 0;
  std::vector<T> values_;
  std::vector<T> gradients_;
};

/// Uniform in [-1, 1), a pure function of the words.
[[nodiscard]] double hashed(std::initializer_list<std::uint64_t> words) noexcept;

}  // namespace megatron_style
