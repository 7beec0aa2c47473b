// SPDX-License-Identifier: Apache-2.0
#include "record.hpp"

#include <dyncp/io/files.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <fstream>
#include <utility>

namespace compare {

namespace {

dyncp::result<record> parse(const std::string& line, std::size_t number) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  const auto text = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  const auto real = [&](const char* key) {
    return json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0.0;
  };
  record r;
  if (json.is_object()) {
    r.set = text("set");
    r.cell = text("cell");
    r.who = text("who");
    r.state = text("state");
    r.micro_batches = static_cast<std::int32_t>(real("micro_batches"));
    r.makespan_s = real("makespan_s");
    r.iteration_s = real("iteration_s");
    r.cpu_ms = real("cpu_ms");
    r.slots = static_cast<std::int64_t>(real("slots"));
    r.uneven = static_cast<std::int64_t>(real("uneven"));
  }
  if (r.cell.empty() || r.who.empty()) {
    return dyncp::make_error(dyncp::errc::parse_error,
                             "line " + std::to_string(number) + " is no record of this program",
                             "name another file, or remove it to begin anew");
  }
  return r;
}

}  // namespace

dyncp::result<std::vector<record>> read_records(const std::string& path) {
  std::vector<record> records;
  if (!std::ifstream(path)) return records;
  const auto text = dyncp::read_file(path);
  if (!text) return text.error();
  std::size_t number = 1;
  for (std::size_t from = 0;; ++number) {
    const std::size_t end = text->find('\n', from);
    if (end == std::string::npos) return records;
    auto r = parse(text->substr(from, end - from), number);
    if (!r) return r.error();
    records.push_back(*std::move(r));
    from = end + 1;
  }
}

dyncp::result<void> append_records(const std::string& path, const std::vector<record>& records) {
  std::string lines;
  for (const record& r : records) {
    lines += nlohmann::json{{"set", r.set},
                            {"cell", r.cell},
                            {"who", r.who},
                            {"state", r.state},
                            {"micro_batches", r.micro_batches},
                            {"makespan_s", r.makespan_s},
                            {"iteration_s", r.iteration_s},
                            {"cpu_ms", r.cpu_ms},
                            {"slots", r.slots},
                            {"uneven", r.uneven}}
                 .dump() +
             "\n";
  }
  std::ofstream file(path, std::ios::app | std::ios::binary);
  file << lines << std::flush;
  if (!file) {
    return dyncp::make_error(dyncp::errc::io_error, "cannot write " + path,
                             "name a file that can be written (--results)");
  }
  return {};
}

}  // namespace compare
