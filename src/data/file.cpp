#include "data/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::data {
namespace {

std::string system_text(int error_number) { return std::strerror(error_number); }

std::int64_t modified_ns(const struct stat& status) {
  return status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

std::string folder_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void sync_path(const std::string& path, int flags) {
  const Descriptor descriptor = open_file(path, flags);
  require(::fsync(descriptor.get()) == 0, ErrorCode::system_call, "cannot sync {}: {}", path, system_text(errno));
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  descriptor_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  require(static_cast<bool>(descriptor_), ErrorCode::data_missing, "cannot open {}: {}", path, system_text(errno));
  struct stat status {};
  require(::fstat(descriptor_.get(), &status) == 0, ErrorCode::system_call, "cannot inspect {}: {}", path,
          system_text(errno));
  require(S_ISREG(status.st_mode), ErrorCode::data_missing, "{} is {}, where a file was wanted", path,
          S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
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

InputFile::Outcome InputFile::try_read(std::uint64_t offset, std::span<std::byte> target) const {
  while (!target.empty()) {
    const ssize_t n = ::pread(descriptor_.get(), target.data(), target.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Outcome::failed;
    if (n == 0) return Outcome::end_of_file;
    target = target.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return Outcome::complete;
}

void InputFile::fail_read(Outcome outcome, int error_number, std::uint64_t offset, std::size_t n_bytes,
                          const std::string& what) const {
  if (outcome == Outcome::failed)
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
  const Outcome outcome = try_read(offset, target);
  if (outcome != Outcome::complete) fail_read(outcome, errno, offset, target.size(), what);
}

PendingFile::PendingFile(const std::string& path, bool replace)
    : path_(path), temporary_path_(path + ".tmp-" + std::to_string(::getpid())) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  require(!exists || S_ISREG(status.st_mode), ErrorCode::data_exists, "{} exists and is not a regular file", path);
  require(!exists || replace, ErrorCode::data_exists, "{} exists already; --force replaces it", path);
  const std::string folder = folder_of(path);
  require(::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode), ErrorCode::data_missing,
          "cannot write {}: the folder {} does not exist", path, folder);
}

PendingFile::~PendingFile() {
  if (published_) return;
  if (::unlink(temporary_path_.c_str()) != 0 && errno != ENOENT)
    log::warning("cannot remove {}: {}", temporary_path_, system_text(errno));
}

void PendingFile::publish() {
  sync_path(temporary_path_, O_RDWR);
  require(::rename(temporary_path_.c_str(), path_.c_str()) == 0, ErrorCode::system_call, "cannot rename {} to {}: {}",
          temporary_path_, path_, system_text(errno));
  published_ = true;
  sync_path(folder_of(path_), O_RDONLY | O_DIRECTORY);
}

void write_at(const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes) {
  const Descriptor descriptor = open_file(path, O_WRONLY);
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(descriptor.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, ErrorCode::system_call, "writing {} failed: {}", path, system_text(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

}  // namespace lockstep::data
