// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/core/splitmix.hpp>
#include <dyncp/io/portable_math.hpp>
#include <dyncp/io/text.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// A part of a corpus: lengths e^N(mu, sigma), or a single length where `atom` > 0.
struct length_component {
  double weight = 0;
  double mu = 0;
  double sigma = 0;
  std::int64_t atom = 0;
};

/// What a source says of a corpus: shares of sequences and tokens in sequences of at most so many
/// tokens. Below zero: not said.
struct published_point {
  std::int64_t at_most = 0;
  double sequences = -1;
  double tokens = -1;
};

/// A distribution of sequence lengths, fitted to published points or assumed.
struct corpus {
  std::string name;
  std::string source;    ///< where the points are from, or why there are none
  bool assumed = false;  ///< the shape is a guess: nobody published it
  std::int64_t shortest = 1;
  std::int64_t longest = 0;
  std::vector<length_component> components;
  std::vector<published_point> points;
  double published_mean = 0;  ///< 0: not said
};

/// Draws lengths of a corpus, bit for bit the same on every platform for the same seed. What falls
/// outside shortest .. longest is drawn again from the same component (truncated by rejection,
/// never clipped; the weights are those after truncation).
///
/// Not thread-safe; distinct objects are independent.
class length_generator {
 public:
  length_generator(corpus what, std::uint64_t seed) : corpus_(std::move(what)), random_(seed) {
    for (const length_component& part : corpus_.components) total_ += part.weight;
  }

  [[nodiscard]] std::int64_t next() {
    const length_component& part = pick();
    if (part.atom > 0) return part.atom;
    for (;;) {
      const std::int64_t length = draw(part);
      if (length >= corpus_.shortest && length <= corpus_.longest) return length;
    }
  }

 private:
  const length_component& pick() {
    double left = rounded_product(random_.unit(), total_);
    std::size_t k = 0;
    while (k + 1 < corpus_.components.size() && left >= corpus_.components[k].weight) {
      left -= corpus_.components[k++].weight;
    }
    return corpus_.components[k];
  }

  std::int64_t draw(const length_component& part) {
    const double log_length = part.mu + rounded_product(part.sigma, portable::normal(random_));
    if (log_length > 40.0) return 0;  // beyond every corpus: drawn again
    return static_cast<std::int64_t>(portable::exp(log_length) + 0.5);
  }

  corpus corpus_;
  splitmix random_;
  double total_ = 0;
};

/// Every corpus that can be generated. K = 1024 tokens.
///
/// | corpus                   | when to use                                                     |
/// | ------------------------ | --------------------------------------------------------------- |
/// | github, byted            | long tails that hold a large share of the tokens                |
/// | cc-flexsp, cc-short      | web text                                                        |
/// | wikipedia                | many short documents, a few long                                |
/// | wlb, prolong             | mixes for long-context training                                 |
/// | magi                     | a web corpus up to 192K                                         |
/// | llama3-sft, longalign-mix| instruction tuning with a few long samples                      |
/// | mock-*                   | the mock data of Megatron-LM                                    |
/// | video                    | a diffusion model's clips of few sizes; use a model with a full mask |
[[nodiscard]] inline std::vector<corpus> corpora() {
  constexpr std::int64_t k = 1024;
  std::vector<corpus> all;
  all.push_back({"github",
                 "ByteScale (SIGCOMM 2025): shares of tokens above 128K and 256K in its text, the "
                 "octaves below read off its figure 4",
                 false, 16, 2 * k * k,
                 {{.6668, 6.939, .779}, {.2987, 7.202, 1.648}, {.0345, 7.925, 2.008}},
                 {{4 * k, -1, .340}, {8 * k, -1, .447}, {16 * k, -1, .551}, {32 * k, -1, .653},
                  {64 * k, -1, .748}, {128 * k, -1, .838}, {256 * k, -1, .902}}});
  all.push_back({"cc-flexsp",
                 "inferred from one batch in FlexSP (ASPLOS 2025), section 6.3: CommonCrawl",
                 false, 16, 384 * k,
                 {{.4333, 6.03, .5}, {.5667, 7.449, 1.689}},
                 {{2 * k, .74, -1}, {20 * k, .961, -1}, {40 * k, .986, -1}}});
  all.push_back({"cc-short",
                 "assumed: nobody published the lengths of the CommonCrawl run of NVIDIA's article",
                 true, 256, 128 * k, {{1, 6.6, 1.2}}, {}});
  all.push_back({"wikipedia",
                 "a million multilingual page lengths published with FlexSP",
                 false, 16, 19 * k * k / 10,
                 {{.3967, 5.208, .937}, {.3957, 6.177, 1.222}, {.2076, 6.682, 1.465}},
                 {{1 * k, .788, -1}, {2 * k, .896, -1}, {4 * k, .956, -1}, {8 * k, .984, .725},
                  {32 * k, .9987, .924}, {128 * k, -1, .989}},
                 1013.6});
  all.push_back({"wlb",
                 "99,519 lengths of a mix like WLB-LLM's, published with DistCA; capped at 128K",
                 false, 16, 128 * k,
                 {{.4107, 7.125, 1.012}, {.3746, 8.12, .323}, {.2045, 8.559, .053},
                  {.0103, 11.451, .793}},
                 {{4 * k, .637, -1}, {8 * k, .976, -1}, {64 * k, .9947, .872}}, 3962});
  all.push_back({"prolong", "77,932 lengths of ProLong, published with DistCA", false, 575, 350000,
                 {{.0324, 5.602, 2.298}, {.1863, 7.184, .29}, {.7813, 7.681, .839}},
                 {{2 * k, .534, -1}, {8 * k, .947, -1}, {32 * k, .998, -1}}, 3052});
  all.push_back({"magi", "the default corpus of MagiAttention's benchmark, 13.4 million documents",
                 false, 1, 192 * k,
                 {{.5476, 6.297, .846}, {.4503, 6.312, 1.653}, {.0021, 11.812, .108}},
                 {{100, .083, -1}, {200, .186, -1}, {500, .468, -1}, {1 * k, .714, -1},
                  {2 * k, .870, -1}, {4 * k, .944, -1}, {8 * k, .974, -1}, {16 * k, .987, -1},
                  {32 * k, .9956, -1}, {64 * k, .9970, -1}, {128 * k, .9986, -1}}});
  all.push_back({"byted", "ByteScale (SIGCOMM 2025), a long-context mix, in its text", false, 16,
                 2 * k * k,
                 {{.8309, 6.362, 1.137}, {.1614, 9.824, .811}, {.0077, 12.671, .3},
                  {.0005, 0, 0, 2 * k * k}},
                 {{4 * k, .80, -1}, {128 * k, .99, .557}, {256 * k, -1, .63}}});
  all.push_back({"llama3-sft",
                 "means of the Llama 3 report, table 7; the spread is assumed",
                 true, 16, 128 * k, {{.9989, 6.286, .9}, {.0011, 10.448, .45}}, {}, 846.1});
  all.push_back({"longalign-mix", "assumed: LongAlign-10k (8K to 64K) among short chats", true, 16,
                 64 * k, {{.889, 6.75, 1.0}, {.111, 9.75, .5}}, {}});
  // mu = ln(mean) - sigma^2 / 2, as Megatron-LM computes it; it clips, we draw again.
  all.push_back({"mock-512", "Megatron-LM's mock data: lognormal, mean 512, sigma 1.2", false, 128,
                 2048, {{1, 5.518324625039508, 1.2}}, {}});
  all.push_back({"mock-1k", "Megatron-LM's mock data: lognormal, mean 1024, sigma 1.5", false, 128,
                 8192, {{1, 5.806471805599453, 1.5}}, {}});
  all.push_back({"mock-16k", "Megatron-LM's mock data: lognormal, mean 16384, sigma 1.1", false,
                 256, 128 * k, {{1, 9.099060527839234, 1.1}}, {}});
  all.push_back({"video", "assumed: clips of a few sizes for a diffusion transformer", true, 1,
                 70000,
                 {{.30, 0, 0, 300}, {.25, 0, 0, 1200}, {.20, 0, 0, 4800}, {.10, 0, 0, 9600},
                  {.08, 0, 0, 19200}, {.05, 0, 0, 38400}, {.02, 0, 0, 70000}},
                 {}});
  return all;
}

/// Errors: unknown_name with the nearest name and all that exist.
[[nodiscard]] inline result<corpus> find_corpus(std::string_view name) {
  std::vector<std::string> names;
  for (corpus& c : corpora()) {
    if (c.name == name) return std::move(c);
    names.push_back(c.name);
  }
  const std::string nearest = text::nearest_name(name, names);
  return make_error(errc::unknown_name, "no corpus is named " + text::quoted(name),
                    (nearest.empty() ? "" : "did you mean " + nearest + "? ") +
                        ("known: " + text::joined(names)));
}

}  // namespace v0
}  // namespace dyncp
