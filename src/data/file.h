// Input files of data sets: read-only files that name themselves in every error and detect when they were changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace lockstep::data {

class InputFile {
 public:
  /// Throws cannot_open if it does not exist, is a folder, or may not be read.
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const { return size_bytes_; }  // when it was opened

  /// Fills `target` from `offset`. Thread-safe, without allocation. After `failed`, errno has the reason.
  ReadOutcome try_read(std::uint64_t offset, std::span<std::byte> target) const {
    return try_read_at(descriptor_, target, offset);
  }
  /// The same, but throws an Error that names the file and `what` ("sample 17", "its labels").
  void read(std::uint64_t offset, std::span<std::byte> target, const std::string& what) const;
  /// Throws data_changed if the file has changed since it was opened (size, time of the last write).
  void require_unchanged() const;
  /// Throws the Error that read() throws for such an outcome.
  [[noreturn]] void fail_read(ReadOutcome outcome, int error_number, std::uint64_t offset, std::size_t n_bytes,
                              const std::string& what) const;

 private:
  std::string path_;
  Descriptor descriptor_;
  std::uint64_t size_bytes_ = 0;
  std::int64_t modified_ns_ = 0;  // time of the last write
};

/// A range of a file.
struct ByteRange {
  std::uint64_t offset = 0, size_bytes = 0;
  std::uint64_t end() const { return offset + size_bytes; }
  bool operator==(const ByteRange&) const = default;
};

/// The positions of a data set's bytes in its file: contiguous, or in chunks of equal size at any positions. The last
/// chunk is padded.
struct StoredBytes {
  std::uint64_t size_bytes = 0;
  std::uint64_t chunk_bytes = 0;       // in the file; contiguous: size_bytes
  std::vector<std::uint64_t> offsets;  // of the chunks in the file; contiguous: one

  static StoredBytes contiguous(const ByteRange& range) { return {range.size_bytes, range.size_bytes, {range.offset}}; }
  /// Chunks that were written one after the other: the first at offset `first`, the second at `second`, and each
  /// further one `stride` bytes after the one before.
  static StoredBytes in_a_row(std::uint64_t size_bytes, std::uint64_t chunk_bytes, std::uint64_t first,
                              std::uint64_t second, std::uint64_t stride);

  static std::uint64_t n_chunks(std::uint64_t size_bytes, std::uint64_t chunk_bytes) {
    return size_bytes / chunk_bytes + (size_bytes % chunk_bytes != 0);
  }
  bool chunked() const { return chunk_bytes != size_bytes; }

  /// The position of byte `begin` of the data set, and how many of the next `n_bytes` are contiguous in the file.
  /// begin + n_bytes <= size_bytes.
  ByteRange contiguous_range(std::uint64_t begin, std::uint64_t n_bytes) const {
    std::uint64_t chunk = begin / chunk_bytes;
    const std::uint64_t inside = begin - chunk * chunk_bytes, offset = offsets[chunk] + inside;
    std::uint64_t n = chunk_bytes - inside;
    for (; n < n_bytes && offsets[chunk + 1] == offset + n; ++chunk) n += chunk_bytes;
    return {offset, std::min(n, n_bytes)};
  }
  bool operator==(const StoredBytes&) const = default;
};

/// What `data verify` finds: a sentence for each damaged place, and what could not be checked.
struct Verification {
  std::vector<std::string> damaged, unchecked;
  bool is_valid() const { return damaged.empty() && unchecked.empty(); }
};

/// The files below a folder that `accepts` selects, sorted by path, and the folders that cannot be listed (possibly the
/// folder itself). Links to folders are not followed.
struct FolderListing {
  struct Unread {
    std::string path, reason;
  };
  std::vector<std::string> files;
  std::vector<Unread> unread;
};
FolderListing list_readable_files(const std::string& folder,
                                  const std::function<bool(const std::filesystem::path&)>& accepts);
/// The same files. Throws data_source if a folder cannot be listed.
std::vector<std::string> list_files(const std::string& folder,
                                    const std::function<bool(const std::filesystem::path&)>& accepts);

/// Returns `path`. Throws data_exists unless it is free or `replace` allows replacing it, and system_call if no file
/// can be created in its folder.
const std::string& check_output(const std::string& path, bool replace);

}  // namespace lockstep::data
