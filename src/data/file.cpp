#include "data/file.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

std::int64_t modified_ns(const struct stat& status) {
  return status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

}  // namespace

InputFile::InputFile(const std::string& path)
    : path_(path), descriptor_(open_regular_file(path, ErrorCode::data_missing)) {
  struct stat status {};
  require(::fstat(descriptor_.get(), &status) == 0, ErrorCode::system_call, "cannot inspect {}: {}", path,
          system_text(errno));
  size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  modified_ns_ = modified_ns(status);
}

void InputFile::require_unchanged() const {
  struct stat status {};
  require(::fstat(descriptor_.get(), &status) == 0, ErrorCode::system_call, "cannot inspect {}: {}", path_,
          system_text(errno));
  const auto size_bytes = static_cast<std::uint64_t>(status.st_size);
  require(size_bytes == size_bytes_, ErrorCode::data_changed, "{} has changed from {} to {} bytes while it was in use",
          path_, size_bytes_, size_bytes);
  require(modified_ns(status) == modified_ns_, ErrorCode::data_changed, "{} was written to while it was in use", path_);
}

void InputFile::fail_read(ReadOutcome outcome, int error_number, std::uint64_t offset, std::size_t n_bytes,
                          const std::string& what) const {
  if (outcome == ReadOutcome::failed)
    fail(ErrorCode::data_unreadable, "{}: reading {} ({} bytes at offset {}) failed: {}", path_, what, n_bytes, offset,
         system_text(error_number));
  struct stat status {};
  const auto now = ::fstat(descriptor_.get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
  if (now < size_bytes_)
    fail(ErrorCode::data_truncated,
         "{} shrank from {} to {} bytes while it was open: {} ({} bytes at offset {}) cannot be read", path_,
         size_bytes_, now, what, n_bytes, offset);
  fail(ErrorCode::data_truncated, "{} ends at byte {}, inside {} ({} bytes at offset {})", path_, now, what, n_bytes,
       offset);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> target, const std::string& what) const {
  const ReadOutcome outcome = try_read(offset, target);
  if (outcome != ReadOutcome::complete) fail_read(outcome, errno, offset, target.size(), what);
}

void check_output(const std::string& path, bool replace) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  require(!exists || S_ISREG(status.st_mode), ErrorCode::data_exists, "{} exists and is not a regular file", path);
  require(!exists || replace, ErrorCode::data_exists, "{} already exists; use --force to replace it", path);
  const std::string parent = std::filesystem::path(path).parent_path().string(), folder = parent.empty() ? "." : parent;
  require(::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode), ErrorCode::data_missing,
          "cannot write {}: the folder {} does not exist", path, folder);
}

}  // namespace lockstep::data
