// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cuda/bootstrap.hpp>
#include <dyncp/cuda/fabric_abi.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cuda {

struct file_bootstrap_options {
  /// In a folder that all ranks see, the same for all ranks of one run and new for each run: files
  /// are written at this path with something behind it.
  std::string path;
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::int64_t deadline_us = 60'000'000;  ///< of a broadcast
  /// Looking for notices of other ranks costs `ranks` calls of the file system: not more often.
  std::int64_t look_every_us = 100'000;
};

namespace detail {

class shared_files {
 public:
  explicit shared_files(file_bootstrap_options options)
      : options_(std::move(options)),
        heard_(static_cast<std::size_t>(std::max(options_.ranks, 0)), 0) {}

  [[nodiscard]] result<void> broadcast(std::span<std::byte> data) {
    const std::string name = options_.path + ".id" + std::to_string(broadcasts_++);
    if (options_.rank == 0) {
      if (std::FILE* old = std::fopen(name.c_str(), "rb"); old != nullptr) {
        std::fclose(old);
        return make_error(errc::io_error, "rank 0: " + name + " is there from another run",
                          "give each run a path of its own, or remove the file");
      }
      return write(name, data);
    }
    const std::int64_t begin = abi::clock_us();
    for (std::int64_t round = 0;; ++round) {
      if (std::FILE* file = std::fopen(name.c_str(), "rb"); file != nullptr) {
        const std::size_t got = std::fread(data.data(), 1, data.size(), file);
        const bool more = std::fgetc(file) != EOF;
        std::fclose(file);
        if (got == data.size() && !more) return {};
        return error{errc::mismatch,
                     "rank " + std::to_string(options_.rank) + " expects " +
                         std::to_string(data.size()) + " bytes in " + name + ", there are " +
                         (more ? "more" : std::to_string(got)),
                     static_cast<std::int64_t>(got), static_cast<std::int64_t>(data.size()),
                     "call the same functions on all ranks, in the same order"};
      }
      if (abi::clock_us() - begin >= options_.deadline_us) {
        return error{errc::timeout,
                     "rank " + std::to_string(options_.rank) + " waited " +
                         std::to_string(options_.deadline_us) + " us for " + name,
                     options_.deadline_us, options_.deadline_us,
                     "see why rank 0 is late, whether all ranks see that folder, or raise the "
                     "deadline"};
      }
      abi::pause(round);
    }
  }

  void tell(const failure_notice& notice) {
    const std::string name = notice_name(options_.rank, told_++);
    // Without the file the others find their deadline.
    static_cast<void>(write(name, std::as_bytes(std::span<const failure_notice>(&notice, 1))));
  }

  [[nodiscard]] bool hear(failure_notice& notice) {
    const std::int64_t now = abi::clock_us();
    if (looked_ && now - last_look_us_ < options_.look_every_us) return false;
    for (std::int32_t r = 0; r < options_.ranks; ++r) {
      if (r == options_.rank) continue;
      std::int64_t& next = heard_[static_cast<std::size_t>(r)];
      std::FILE* const file = std::fopen(notice_name(r, next).c_str(), "rb");
      if (file == nullptr) continue;
      const bool whole = std::fread(&notice, sizeof notice, 1, file) == 1;
      std::fclose(file);
      ++next;
      if (whole) return true;
    }
    looked_ = true;
    last_look_us_ = now;
    return false;
  }

 private:
  [[nodiscard]] std::string notice_name(std::int32_t rank, std::int64_t number) const {
    return options_.path + ".failed" + std::to_string(rank) + "." + std::to_string(number);
  }

  /// The file appears whole or not at all.
  [[nodiscard]] result<void> write(const std::string& name, std::span<const std::byte> data) const {
    const std::string draft = name + ".new" + std::to_string(options_.rank);
    std::FILE* const file = std::fopen(draft.c_str(), "wb");
    bool good = file != nullptr;
    if (good) {
      good = std::fwrite(data.data(), 1, data.size(), file) == data.size();
      good = std::fclose(file) == 0 && good;
    }
    if (good) good = std::rename(draft.c_str(), name.c_str()) == 0;
    if (good) return {};
    return make_error(errc::io_error,
                      "rank " + std::to_string(options_.rank) + " cannot write " + name,
                      "give a path in a folder that every rank may write to");
  }

  file_bootstrap_options options_;
  std::int64_t broadcasts_ = 0;
  std::int64_t told_ = 0;
  std::vector<std::int64_t> heard_;  // notices of each rank so far
  bool looked_ = false;
  std::int64_t last_look_us_ = 0;
};

}  // namespace detail

/// Ranks that see a common folder and nothing else of each other.
///
/// Files stay behind: they are small, and no rank knows when the others have read them. Errors of
/// its broadcast: io_error, timeout, mismatch.
[[nodiscard]] inline bootstrap file_bootstrap(const file_bootstrap_options& options) {
  const auto files = std::make_shared<detail::shared_files>(options);
  bootstrap out;
  out.rank = options.rank;
  out.ranks = options.ranks;
  out.broadcast = [files](std::span<std::byte> data) { return files->broadcast(data); };
  out.tell = [files](const failure_notice& notice) { files->tell(notice); };
  out.hear = [files](failure_notice& notice) { return files->hear(notice); };
  return out;
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
