// The bytes of a source of an import, one after the other. A file that was compressed with gzip or zstd is decompressed
// by a child process (arrow_process.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "data/arrow_process.h"
#include "data/file.h"

namespace lockstep::data {

/// The first bytes of a file, at most `most`.
std::string head_of(const InputFile& file, std::size_t most = 6);
bool is_compressed(std::string_view head);

class ByteSource {
 public:
  explicit ByteSource(const std::string& path);

  const InputFile& file() const { return file_; }
  std::uint64_t done_bytes() const;  // of the file
  /// The unused bytes of the buffer, which is refilled if there are none. Empty at the end.
  std::string_view buffered();
  void use(std::size_t n_bytes) { used_ += n_bytes; }
  /// Appends the next line with its end. Returns false at the end. A line of more than `max_bytes`, together with what
  /// `line` contains, is an error, whose message begins with the file and `number`.
  bool read_line(std::string& line, std::uint64_t max_bytes, std::int64_t number);

 private:
  InputFile file_;
  std::unique_ptr<ArrowProcess> decompressing_;
  std::uint64_t offset_ = 0;  // behind the buffer
  std::string buffer_;
  std::string_view part_;  // the buffer, or what was decompressed
  std::size_t used_ = 0;   // bytes of it
};

}  // namespace lockstep::data
