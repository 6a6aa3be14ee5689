#include "checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>

#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

/// Right after the failed call, since errno is the reason.
template <typename... Args>
[[noreturn]] void refuse(ErrorCode code, fmt::format_string<Args...> what, Args&&... args) {
  const int error = errno;
  throw Error(code, fmt::format("cannot {}: {}", fmt::format(what, std::forward<Args>(args)...), reason(error)));
}

// Linux moves at most 0x7ffff000 bytes a call; smaller calls also let a signal through.
constexpr std::size_t kMaxCallBytes = std::size_t{1} << 30;

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Descriptor open_file(const std::string& path, int flags) {
  int descriptor = -1;
  do descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  while (descriptor < 0 && errno == EINTR);
  return Descriptor(descriptor);
}

}  // namespace

void DescriptorTraits::close(Type descriptor) {
  // Everything that must last was synced before; a failing close can only be told.
  if (::close(descriptor) != 0) std::fprintf(stderr, "closing a file failed: %s\n", reason(errno).c_str());
}

Descriptor open_to_read(const std::string& path) {
  Descriptor file = open_file(path, O_RDONLY);
  if (!file) refuse(ErrorCode::checkpoint_not_found, "open {}", path);
  struct stat status {};
  require(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), ErrorCode::checkpoint_not_found,
          "{} is not a file", path);
  return file;
}

Descriptor create_file(const std::string& path) {
  Descriptor file = open_file(path, O_RDWR | O_CREAT | O_TRUNC);
  if (!file) refuse(ErrorCode::checkpoint_write, "create {}", path);
  return file;
}

Descriptor open_to_write(const std::string& path) {
  Descriptor file = open_file(path, O_RDWR);
  if (!file) refuse(ErrorCode::checkpoint_write, "open {} for writing", path);
  return file;
}

std::uint64_t size_bytes(const Descriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) refuse(ErrorCode::system_call, "ask for the size of {}", path);
  return static_cast<std::uint64_t>(status.st_size);
}

void write_at(const Descriptor& file, const std::string& path, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n =
        ::pwrite(file.get(), bytes.data(), std::min(bytes.size(), kMaxCallBytes), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENOSPC;
    if (n <= 0) refuse(ErrorCode::checkpoint_write, "write {} bytes at byte {} of {}", bytes.size(), offset, path);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void read_at(const Descriptor& file, const std::string& path, std::span<std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n =
        ::pread(file.get(), bytes.data(), std::min(bytes.size(), kMaxCallBytes), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(ErrorCode::checkpoint_damaged, "read {} bytes at byte {} of {}", bytes.size(), offset, path);
    require(n > 0, ErrorCode::checkpoint_damaged, "{} ends at byte {}, {} bytes more were wanted", path, offset,
            bytes.size());
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void set_length(const Descriptor& file, const std::string& path, std::uint64_t length_bytes) {
  if (::ftruncate(file.get(), static_cast<off_t>(length_bytes)) != 0)
    refuse(ErrorCode::checkpoint_write, "make {} {} bytes long", path, length_bytes);
}

void synchronize(const Descriptor& file, const std::string& path) {
  if (::fsync(file.get()) != 0) refuse(ErrorCode::checkpoint_write, "bring {} to the disk", path);
}

namespace {
constexpr std::string_view kPartial = ".partial";
}

std::string partial_name(const std::string& path) { return path + std::string(kPartial); }
bool is_partial_name(const std::string& path) { return path.ends_with(kPartial); }

void synchronize_directory_of(const std::string& path) {
  const std::string directory = directory_of(path);
  Descriptor file = open_file(directory, O_RDONLY | O_DIRECTORY);
  if (!file) refuse(ErrorCode::checkpoint_write, "open the directory {}", directory);
  // Some network file systems have no sync of directories and say EINVAL; their rename is durable by itself.
  if (::fsync(file.get()) != 0 && errno != EINVAL)
    refuse(ErrorCode::checkpoint_write, "bring the directory {} to the disk", directory);
}

void publish_file(const std::string& path) {
  if (::rename(partial_name(path).c_str(), path.c_str()) != 0)
    refuse(ErrorCode::checkpoint_write, "give the whole file its name {}", path);
  synchronize_directory_of(path);
}

void remove_partial(const std::string& path) noexcept {
  const std::string partial = partial_name(path);
  if (::unlink(partial.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR)
    std::fprintf(stderr, "cannot remove %s: %s\n", partial.c_str(), reason(errno).c_str());
}

}  // namespace lockstep::checkpoint
