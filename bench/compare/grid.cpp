// SPDX-License-Identifier: Apache-2.0
#include "grid.hpp"

#include <dyncp/io/corpora.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/problem/presets.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace compare {

namespace {

struct shape {
  std::int32_t ranks = 8;
  std::int32_t pp = 8;
  std::int32_t vpp = 1;
  std::int64_t limit = 16384;
  std::int64_t count = 2048;
};

dyncp::problem job(const shape& s) {
  dyncp::problem p;
  p.model = *dyncp::find_model("reference-13b");
  p.cluster = *dyncp::find_cluster("reference-13b");
  p.parallel.ranks = s.ranks;
  p.parallel.pp = s.pp;
  p.parallel.vpp = s.vpp;
  p.parallel.static_cp = 8;
  p.limits.max_tokens_per_rank = s.limit;
  return p;
}

// Lengths of a corpus between `shortest` and 131072; the generator goes on from batch to batch.
std::vector<dyncp::sequence> next_batch(dyncp::length_generator& lengths, std::int64_t shortest,
                                        std::int64_t count) {
  std::vector<std::int64_t> batch;
  while (static_cast<std::int64_t>(batch.size()) < count) {
    const std::int64_t n = lengths.next();
    if (n >= shortest && n <= 131072) batch.push_back(n);
  }
  return *dyncp::make_batch(batch);
}

cell corpus_cell(std::string set, const std::string& corpus, const shape& s) {
  cell c{std::move(set), corpus, {}, {job(s)}};
  c.name += " R" + std::to_string(s.ranks) + " pp" + std::to_string(s.pp);
  if (s.vpp > 1) c.name += " vpp" + std::to_string(s.vpp);
  c.name += " limit" + std::to_string(s.limit) + " n" + std::to_string(s.count);
  dyncp::length_generator lengths(*dyncp::find_corpus(corpus), 1);
  c.batches.front().sequences = next_batch(lengths, 16, s.count);
  return c;
}

std::string trace_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return name.substr(0, name.find_last_of('.'));
}

// 2048 lengths between 16 and 131072: the first, which are those of tests/golden/peers.json, or the
// ones after them, which nobody tuned on.
dyncp::result<void> add_trace(std::vector<cell>& grid, const std::string& path, bool recorded) {
  const auto list = dyncp::read_length_file(path);
  if (!list) return list.error();
  dyncp::length_selection wanted;
  wanted.min_length = 16;
  wanted.max_length = 131072;
  wanted.count = 2048;
  wanted.skip = recorded ? 0 : wanted.count;
  const auto batch = dyncp::select_batch(*list, wanted);
  if (!batch) return batch.error();
  const std::string trace = trace_of(path);
  for (const std::int32_t ranks : {8, 32, 64}) {
    cell c{recorded ? "recorded" : "next", trace + " R" + std::to_string(ranks),
           recorded ? trace : "", {job({.ranks = ranks})}};
    c.batches.front().sequences = batch->sequences;
    grid.push_back(std::move(c));
  }
  return {};
}

// 13B, pp 8 on 64 GPUs: the setting of NVIDIA's article as far as it is published.
void add_article(std::vector<cell>& grid) {
  for (const char* corpus : {"github", "cc-short", "cc-flexsp"}) {
    for (const int bandwidth : {300, 150}) {
      dyncp::problem p = job({.limit = 65536});
      p.model = *dyncp::find_model("study-13b");
      p.cluster = *dyncp::find_cluster("study-13b");
      p.cluster.nvlink_bytes_per_s = bandwidth * 1e9;
      cell c{"article", corpus, {}, {}};
      c.name += " " + std::to_string(bandwidth) + " GB/s";
      dyncp::length_generator lengths(*dyncp::find_corpus(corpus), 1);
      for (int batch = 0; batch < 10; ++batch) {
        p.sequences = next_batch(lengths, 256, 2048);
        if (batch > 0) c.batches.push_back(p);
      }
      grid.push_back(std::move(c));
    }
  }
}

}  // namespace

dyncp::result<std::vector<cell>> default_grid(const std::vector<std::string>& traces) {
  std::vector<cell> grid;
  for (const std::string& path : traces) {
    for (const bool recorded : {true, false}) {
      if (auto ok = add_trace(grid, path, recorded); !ok) return ok.error();
    }
  }
  for (const char* corpus : {"magi", "byted", "longalign-mix", "llama3-sft", "mock-16k", "video"}) {
    for (const std::int32_t ranks : {8, 32, 64}) {
      grid.push_back(corpus_cell("corpora", corpus, {.ranks = ranks}));
    }
  }
  for (const shape& s : {shape{.ranks = 32, .pp = 1}, {.ranks = 32, .pp = 4},
                         {.ranks = 32, .pp = 16}, {.ranks = 32, .pp = 4, .vpp = 2},
                         {.ranks = 32, .limit = 65536}, {.ranks = 16, .count = 256},
                         {.ranks = 128, .count = 4096}}) {
    grid.push_back(corpus_cell("shapes", "github", s));
  }
  for (cell& c : grid) c.fluid = c.set != "shapes";
  add_article(grid);
  return grid;
}

dyncp::result<std::vector<cell>> full_grid(const std::vector<std::string>& traces) {
  auto grid = default_grid(traces);
  if (!grid) return grid;
  for (const dyncp::corpus& corpus : dyncp::corpora()) {
    for (const std::int32_t ranks : {8, 16, 32, 64, 128}) {
      for (const std::int32_t pp : {4, 8}) {
        for (const std::int64_t limit : {16384, 65536}) {
          for (const std::int64_t count : {512, 2048}) {
            grid->push_back(corpus_cell(
                "full", std::string(corpus.name),
                {.ranks = ranks, .pp = pp, .limit = limit, .count = count}));
          }
        }
      }
    }
  }
  return grid;
}

}  // namespace compare
