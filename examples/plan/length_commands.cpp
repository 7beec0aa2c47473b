// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "input.hpp"
#include "report.hpp"

#include <dyncp/io/corpora.hpp>
#include <dyncp/io/files.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/length_distribution.hpp>
#include <dyncp/io/pictures.hpp>
#include <dyncp/io/table.hpp>
#include <dyncp/io/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tool {
namespace {

namespace text = dyncp::text;

constexpr std::int64_t most_lengths = std::int64_t{1} << 28;

dyncp::result<std::vector<std::int64_t>> draw(const dyncp::corpus& what, std::int64_t count,
                                              std::int64_t seed) {
  if (count < 1 || count > most_lengths) {
    return dyncp::error{dyncp::errc::invalid_argument, "count is " + std::to_string(count), count,
                        most_lengths, "draw 1 to 2^28 lengths"};
  }
  if (seed < 0) {
    return dyncp::error{dyncp::errc::invalid_argument, "seed is " + std::to_string(seed), seed, 0,
                        "seeds are 0 or more"};
  }
  dyncp::length_generator generator(what, static_cast<std::uint64_t>(seed));
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(count));
  for (std::int64_t& length : lengths) length = generator.next();
  return lengths;
}

std::string length_name(std::int64_t tokens) {
  return tokens >= 1024 && tokens % 1024 == 0 ? std::to_string(tokens / 1024) + "K"
                                              : std::to_string(tokens);
}

std::string share(double value) { return value < 0 ? "" : text::percent(value, 2); }

// The points of the corpus among 2K .. 128K.
std::vector<dyncp::published_point> rows_of(const dyncp::corpus* what) {
  std::vector<dyncp::published_point> rows;
  if (what != nullptr) rows = what->points;
  std::set<std::int64_t> known;
  for (const dyncp::published_point& p : rows) known.insert(p.at_most);
  for (std::int64_t k = 2; k <= 128; k *= 2) {
    if (known.count(k * 1024) == 0) rows.push_back({k * 1024, -1, -1});
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.at_most < b.at_most;
  });
  return rows;
}

std::string source_line(const dyncp::corpus& c) {
  const bool labelled = c.source.find("assumed") == 0;
  return fmt::format("corpus {}: {}{}\n", c.name, c.assumed && !labelled ? "assumed; " : "",
                     c.source);
}

std::string distance_line(const dyncp::length_distribution& d, const dyncp::corpus& c) {
  const dyncp::distance_to_points off = dyncp::distance(d, c);
  std::string out;
  if (off.compared == 0) {
    out = "nothing published to compare with";
  } else {
    std::string what;
    if (off.sequences > 0) what += text::percent(off.sequences, 2) + " of sequences";
    if (off.tokens > 0) {
      what += (what.empty() ? "" : ", ") + text::percent(off.tokens, 2) + " of tokens";
    }
    out = fmt::format("largest distance from {} published shares: {}", off.compared, what);
  }
  if (c.published_mean > 0) {
    out += fmt::format("; mean {} beside {}", text::fixed(d.mean(), 1),
                       text::fixed(c.published_mean, 1));
  }
  return out + "\n";
}

std::string to_json(const dyncp::length_distribution& d, const dyncp::corpus* what) {
  dyncp::json_writer w;
  w.begin_object().member("sequences", d.count()).member("tokens", d.tokens());
  w.member("squares", d.squares()).member("mean", d.mean()).member("longest", d.longest());
  w.member("effective_length", d.effective_length());
  for (const auto& [name, q] : {std::pair{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}}) {
    w.member(name, d.quantile(q));
  }
  if (what != nullptr) {
    const dyncp::distance_to_points off = dyncp::distance(d, *what);
    w.begin_object("corpus").member("name", what->name).member("source", what->source);
    w.member("assumed", what->assumed).member("published_shares", off.compared);
    w.member("largest_distance_sequences", off.sequences);
    w.member("largest_distance_tokens", off.tokens).end();
  }
  w.begin_array("shares");
  for (const dyncp::published_point& p : rows_of(what)) {
    w.begin_object(dyncp::json_layout::row).member("at_most", p.at_most);
    w.member("sequences", d.sequences_up_to(p.at_most)).member("tokens", d.tokens_up_to(p.at_most));
    if (p.sequences >= 0) w.member("published_sequences", p.sequences);
    if (p.tokens >= 0) w.member("published_tokens", p.tokens);
    w.end();
  }
  return w.end().end().take();
}

void print_distribution(const dyncp::length_distribution& d, const dyncp::corpus* what) {
  fmt::print("{} sequences, {} tokens: mean {}, median {}, 90 % at most {}, 99 % at most {}, "
             "longest {}\nan average token finds itself in a sequence of {} tokens\n",
             text::grouped(d.count()), text::grouped(d.tokens()), text::fixed(d.mean(), 1),
             text::grouped(d.quantile(0.5)), text::grouped(d.quantile(0.9)),
             text::grouped(d.quantile(0.99)), text::grouped(d.longest()),
             text::grouped(static_cast<std::int64_t>(d.effective_length())));
  if (what != nullptr) fmt::print("{}", source_line(*what));
  dyncp::text_table table({"at most", "sequences", "published", "tokens", "published"});
  for (const dyncp::published_point& p : rows_of(what)) {
    table.add({length_name(p.at_most), share(d.sequences_up_to(p.at_most)), share(p.sequences),
               share(d.tokens_up_to(p.at_most)), share(p.tokens)});
  }
  fmt::print("\n{}", table.render());
  if (what != nullptr) fmt::print("\n{}", distance_line(d, *what));
}

}  // namespace

int run_generate(const options& o) {
  auto what = dyncp::find_corpus(o.corpus);
  if (!what) return report_error(what.error(), o.json);
  auto lengths = draw(*what, o.count, o.seed);
  if (!lengths) return report_error(lengths.error(), o.json);
  std::string out;
  out.reserve(lengths->size() * 6);
  for (const std::int64_t length : *lengths) out += std::to_string(length) + '\n';
  if (o.out.empty()) {
    fmt::print("{}", out);
    return 0;
  }
  if (auto ok = dyncp::write_file(o.out, out); !ok) return report_error(ok.error(), o.json);
  fmt::print(stderr, "{}{} lengths written to {}\n", source_line(*what), lengths->size(), o.out);
  return 0;
}

int run_describe(const options& o) {
  constexpr std::int64_t standard_count = 1000000;
  std::optional<dyncp::corpus> what;
  if (!o.corpus.empty()) {
    auto found = dyncp::find_corpus(o.corpus);
    if (!found) return report_error(found.error(), o.json);
    what = std::move(*found);
  }
  std::vector<std::int64_t> lengths;
  if (!o.lengths.empty()) {
    auto list = load_lengths(o);
    if (!list) return report_error(list.error(), o.json);
    lengths = std::move(list->lengths);
  } else if (what) {
    auto drawn = draw(*what, o.is_given("count") ? o.count : standard_count, o.seed);
    if (!drawn) return report_error(drawn.error(), o.json);
    lengths = std::move(*drawn);
  } else {
    return report_error(dyncp::make_error(dyncp::errc::invalid_argument, "nothing to describe",
                                          "give --lengths FILE, --corpus NAME or both"),
                        o.json);
  }
  std::erase_if(lengths, [&](std::int64_t n) { return n < o.min_length || n > o.max_length; });
  if (lengths.empty()) {
    return report_error(dyncp::make_error(dyncp::errc::empty_input, "no length is left",
                                          "widen --min-length and --max-length"),
                        o.json);
  }
  const dyncp::length_distribution d(std::move(lengths));
  const dyncp::corpus* compared = what ? &*what : nullptr;
  if (!o.svg.empty()) {
    const std::string source =
        o.lengths.empty() ? o.corpus : o.lengths.substr(o.lengths.find_last_of('/') + 1);
    const std::string title = source + ": " + text::grouped(d.count()) + " sequences, " +
                              text::grouped(d.tokens()) + " tokens";
    if (auto ok = dyncp::write_file(o.svg, dyncp::distribution_picture(title, d, compared)); !ok) {
      return report_error(ok.error(), o.json);
    }
  }
  if (o.json) {
    fmt::print("{}", to_json(d, compared));
  } else {
    print_distribution(d, compared);
  }
  return 0;
}

}  // namespace tool
