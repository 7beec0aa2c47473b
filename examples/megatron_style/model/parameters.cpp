// SPDX-License-Identifier: Apache-2.0
#include "parameters.hpp"

#include <cmath>
#include <stdexcept>
#include <utility>

namespace megatron_style {

double hashed(std::initializer_list<std::uint64_t> words) noexcept {
  std::uint64_t z = 0x9e3779b97f4a7c15ULL;
  for (std::uint64_t word : words) {
    z ^= word + 0x9e3779b97f4a7c15ULL + (z << 6) + (z >> 2);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
  }
  return static_cast<double>(z >> 11) * 0x1.0p-52 - 1.0;
}

namespace {

void require_divides(std::int32_t what, std::int32_t by, const char* name) {
  if (by < 1 || what % by != 0) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(what) +
                                " is not a multiple of " + std::to_string(by));
  }
}

}  // namespace

template <class T>
parameter_set<T>::parameter_set(const model_config& config, const model_part& part) : part_(part) {
  require_divides(config.layers, part.stages * part.chunks, "layers over virtual stages");
  require_divides(config.q_heads, part.tp, "query heads over tp");
  require_divides(config.kv_heads, part.tp, "key/value heads over tp");
  require_divides(config.ffn, part.tp, "ffn over tp");
  require_divides(config.vocabulary, part.tp, "vocabulary over tp");
  layers_per_chunk_ = config.layers / (part.stages * part.chunks);
  if (part.stage == 0 || part.stage == part.stages - 1) {
    embedding_ = add_row_cut("embedding", config.vocabulary, config.hidden);
  }
  for (std::int32_t chunk = 0; chunk < part.chunks; ++chunk) {
    const std::int32_t first = (chunk * part.stages + part.stage) * layers_per_chunk_;
    for (std::int32_t i = 0; i < layers_per_chunk_; ++i) {
      const std::string name = "layer" + std::to_string(first + i) + ".";
      block_parameters b;
      b.attention_norm = add(name + "attention_norm", 1, config.hidden);
      b.wq = add_column_cut(name + "wq", config.hidden, config.q_width());
      b.wk = add_column_cut(name + "wk", config.hidden, config.kv_width());
      b.wv = add_column_cut(name + "wv", config.hidden, config.kv_width());
      b.wo = add_row_cut(name + "wo", config.q_width(), config.hidden);
      b.ffn_norm = add(name + "ffn_norm", 1, config.hidden);
      b.gate = add_column_cut(name + "gate", config.hidden, config.ffn);
      b.up = add_column_cut(name + "up", config.hidden, config.ffn);
      b.down = add_row_cut(name + "down", config.ffn, config.hidden);
      blocks_.push_back(b);
    }
  }
  if (part.stage == part.stages - 1) final_norm_ = add("final_norm", 1, config.hidden);
  values_.resize(size_);
  gradients_.assign(size_, T{0});
  initialize(config.seed);
}

template <class T>
std::size_t parameter_set<T>::add(std::string name, std::int64_t rows, std::int64_t cols) {
  return place({std::move(name), rows, cols, 0, 0, rows, cols, 0});
}

template <class T>
std::size_t parameter_set<T>::add_row_cut(std::string name, std::int64_t rows, std::int64_t cols) {
  const std::int64_t share = rows / part_.tp;
  return place({std::move(name), rows, cols, part_.tp_rank * share, 0, share, cols, 0});
}

template <class T>
std::size_t parameter_set<T>::add_column_cut(std::string name, std::int64_t rows,
                                             std::int64_t cols) {
  const std::int64_t share = cols / part_.tp;
  return place({std::move(name), rows, cols, 0, part_.tp_rank * share, rows, share, 0});
}

template <class T>
std::size_t parameter_set<T>::place(parameter p) {
  p.offset = size_;
  size_ += p.size();
  parameters_.push_back(std::move(p));
  return parameters_.size() - 1;
}

template <class T>
void parameter_set<T>::initialize(std::uint64_t seed) {
  for (const parameter& p : parameters_) {
    std::uint64_t name = 0xcbf29ce484222325ULL;  // FNV-1a
    for (char c : p.name) name = (name ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    const bool norm = p.full_rows == 1;
    const double scale = p.name == "embedding"
                             ? 0.5
                             : std::sqrt(2.0 / static_cast<double>(p.full_rows + p.full_cols));
    for (std::int64_t r = 0; r < p.rows; ++r) {
      for (std::int64_t c = 0; c < p.cols; ++c) {
        const double x = hashed({seed, name, static_cast<std::uint64_t>(p.row + r),
                                 static_cast<std::uint64_t>(p.col + c)});
        values_[p.offset + static_cast<std::size_t>(r * p.cols + c)] =
            static_cast<T>(norm ? 1.0 + 0.1 * x : scale * x);
      }
    }
  }
}

template class parameter_set<float>;
template class parameter_set<double>;

}  // namespace megatron_style
