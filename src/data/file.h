// Input files of data sets: read-only files that name themselves in every error and detect when they were changed.
#pragma once

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

/// Throws data_exists unless `path` is free or `replace` allows replacing it, and system_call if no file can be created
/// in its folder.
void check_output(const std::string& path, bool replace);

}  // namespace lockstep::data
