// Plain files for data sets: a read-only file that names itself in every error, and output that gets its name by
// rename when it is whole and synced (DESIGN, decision 10).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file.h"

namespace lockstep::data {

class InputFile {
 public:
  /// Throws data_missing when it does not exist, is a folder or may not be read.
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const { return size_bytes_; }  // when it was opened

  enum class Outcome : std::uint8_t { complete, end_of_file, failed };
  /// Fills `target` from `offset`; thread-safe, no allocation. `failed` leaves errno.
  Outcome try_read(std::uint64_t offset, std::span<std::byte> target) const;
  /// The same, throwing an Error that names the file and `what` ("sample 17", "its labels").
  void read(std::uint64_t offset, std::span<std::byte> target, const std::string& what) const;
  /// Throws data_changed when the file is no longer as it was when it was opened (size, time of the last write).
  void require_unchanged() const;
  /// Throws what read() throws for such an outcome.
  [[noreturn]] void fail_read(Outcome outcome, int error_number, std::uint64_t offset, std::size_t n_bytes,
                              const std::string& what) const;

 private:
  std::string path_;
  Descriptor descriptor_;
  std::uint64_t size_bytes_ = 0;
  std::int64_t modified_ns_ = 0;  // time of the last write
};

/// A temporary name beside `path`, removed unless publish() is reached.
class PendingFile {
 public:
  /// Throws data_exists unless `replace`, and data_missing when the folder is not there.
  PendingFile(const std::string& path, bool replace);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  const std::string& temporary_path() const { return temporary_path_; }
  /// Syncs the file, renames it to its name, syncs the folder.
  void publish();

 private:
  std::string path_, temporary_path_;
  bool published_ = false;
};

/// Overwrites bytes of an existing file; throws system_call.
void write_at(const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes);

}  // namespace lockstep::data
