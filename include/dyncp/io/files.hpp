// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/io/text.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace dyncp {
inline namespace v0 {

/// Largest file that is read whole.
inline constexpr std::int64_t max_file_bytes = std::int64_t{1} << 30;

namespace detail {

struct close_file {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

[[nodiscard]] inline error file_error(const char* verb, const std::string& path) {
  return make_error(errc::io_error,
                    "cannot " + std::string(verb) + " " + text::quoted(path) + ": " +
                        std::strerror(errno),
                    "check the path and its permissions");
}

[[nodiscard]] inline result<std::string> read_stream(std::FILE* file, const std::string& path) {
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, file)) {
    if (static_cast<std::int64_t>(text.size() + n) > max_file_bytes) {
      return error{errc::io_error, text::quoted(path) + " is larger than 1 GiB",
                   static_cast<std::int64_t>(text.size() + n), max_file_bytes, "split it"};
    }
    text.append(buffer, n);
  }
  if (std::ferror(file) != 0) return file_error("read", path);
  return text;
}

}  // namespace detail

/// The bytes of a file; "-" is the standard input. Errors: io_error with the system's reason.
[[nodiscard]] inline result<std::string> read_file(const std::string& path) {
  if (path == "-") return detail::read_stream(stdin, "standard input");
  const std::unique_ptr<std::FILE, detail::close_file> file(std::fopen(path.c_str(), "rb"));
  if (!file) return detail::file_error("open", path);
  return detail::read_stream(file.get(), path);
}

/// Writes or replaces a file. Errors: io_error with the system's reason (a full disk too).
[[nodiscard]] inline result<void> write_file(const std::string& path, std::string_view text) {
  std::unique_ptr<std::FILE, detail::close_file> file(std::fopen(path.c_str(), "wb"));
  if (!file) return detail::file_error("write", path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (!written || std::fclose(file.release()) != 0) return detail::file_error("write", path);
  return {};
}

}  // namespace v0
}  // namespace dyncp
