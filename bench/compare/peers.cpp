// SPDX-License-Identifier: Apache-2.0
#include "peers.hpp"

#include <dyncp/io/files.hpp>

#include <nlohmann/json.hpp>

namespace compare {

dyncp::result<std::vector<peer_row>> read_peers(const std::string& path) {
  const auto text = dyncp::read_file(path);
  if (!text) return text.error();
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (json.is_discarded() || !json.contains("records")) {
    return dyncp::make_error(dyncp::errc::parse_error, path + " holds no records",
                             "use tests/golden/peers.json");
  }
  std::vector<peer_row> rows;
  for (const nlohmann::json& record : json["records"]) {
    peer_row row;
    row.trace = record["trace"].get<std::string>();
    row.packer = record["scheduler"].get<std::string>();
    if (row.packer == "dp_balanced") row.packer = "packing_only";
    row.ranks = record["ranks"].get<std::int32_t>();
    row.limit = record["limit"].get<std::int64_t>();
    row.micro_batches = record["pp8_fix"]["micro_batches"].get<std::int32_t>();
    row.iteration_s = record["pp8_fix"]["iteration_s"].get<double>();
    row.valid = record["pp8_fix"]["valid"].get<bool>();
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace compare
