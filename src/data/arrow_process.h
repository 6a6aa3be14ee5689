// The child process that reads a file with Arrow's libraries: src/arrow/main.cpp, which describes its output.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace lockstep::data {

class ArrowProcess {
 public:
  /// `what` the file is ("a Parquet file") is for messages. Throws not_supported if the program is not installed.
  ArrowProcess(std::string path, const char* what, std::vector<std::string> arguments, std::uint64_t max_bytes);
  ~ArrowProcess();
  ArrowProcess(const ArrowProcess&) = delete;
  ArrowProcess& operator=(const ArrowProcess&) = delete;

  /// The next message of this kind. Returns false at the end. The payload is valid until the next call. Throws
  /// data_source if the file is damaged, crashes the process, or has a message of more than `max_bytes`; and what
  /// throw_if_stopped() throws.
  bool next(char kind, std::string_view& payload);
  std::uint64_t done_bytes() const { return done_bytes_; }  // of the file

 private:
  /// `n_bytes` of the output, valid until the next call.
  std::string_view take(std::size_t n_bytes);
  [[noreturn]] void fail_ended();

  std::string path_;
  const char* what_;
  std::uint64_t max_bytes_, done_bytes_ = 0;
  pid_t process_ = -1;
  Descriptor output_;
  std::string buffer_;
  std::size_t used_ = 0;  // bytes of the buffer
  bool is_over_ = false;
};

}  // namespace lockstep::data
