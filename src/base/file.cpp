#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/hash.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kPartial = ".partial";
// Linux transfers at most 0x7ffff000 bytes per call.
constexpr std::size_t kMaxCallBytes = std::size_t{1} << 30;

/// Must be called right after the failed call, because it reports errno.
template <typename... Args>
[[noreturn]] void fail_with_errno(ErrorCode code, fmt::format_string<Args...> what, Args&&... args) {
  const int error = errno;
  if (error == EMFILE || error == ENFILE) code = ErrorCode::system_call;  // this is not about the file
  throw Error(code, fmt::format("cannot {}: {}", fmt::format(what, std::forward<Args>(args)...), system_text(error)));
}

std::string directory_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void sync_directory_of(const std::string& path) {
  const std::string directory = directory_of(path);
  const Descriptor file = open_file(directory, O_RDONLY | O_DIRECTORY);
  // Some network file systems cannot sync a directory and return EINVAL; their rename is durable by itself.
  if (::fsync(file.get()) != 0 && errno != EINVAL)
    fail_with_errno(ErrorCode::system_call, "sync the directory {}", directory);
}

/// The descriptor of this process that the path names: "/dev/fd/63"; otherwise -1.
int own_descriptor(const std::string& path) {
  if (path == "/dev/stdin") return STDIN_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    int descriptor = -1;
    const char* end = path.data() + path.size();
    if (path.starts_with(folder) &&
        std::from_chars(path.data() + folder.size(), end, descriptor) == std::from_chars_result{end, std::errc()})
      return descriptor;
  }
  return -1;
}

}  // namespace

std::string system_text(int error_number) {
  const std::string text = std::generic_category().message(error_number);
  rlimit limit{};
  if (error_number == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    return fmt::format("{} (this process may open {}; `ulimit -n` raises the limit)", text, limit.rlim_cur);
  if (error_number == EAGAIN && ::getrlimit(RLIMIT_NPROC, &limit) == 0)
    return fmt::format(
        "{} (`ulimit -u` limits the processes and threads of a user, here to {}; containers and jobs may have a lower "
        "limit, pids.max)",
        text, limit.rlim_cur == RLIM_INFINITY ? "no number" : std::to_string(limit.rlim_cur));
  return text;
}

void DescriptorTraits::close(Type descriptor) {
  // Data that must be durable have been synced already, so a failed close is only reported.
  if (::close(descriptor) != 0) std::fprintf(stderr, "cannot close a file: %s\n", system_text(errno).c_str());
}

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

std::string broken_link_text(const std::string& path) {
  std::error_code error;
  std::filesystem::path part;
  for (const std::filesystem::path& name : std::filesystem::path(path)) {
    part /= name;
    if (!std::filesystem::is_symlink(part, error) || std::filesystem::exists(part, error)) continue;
    return fmt::format("{} is a link to {}, which does not exist", part.string(),
                       std::filesystem::read_symlink(part, error).string());
  }
  return "";
}

std::string folder_problem(const std::string& path, const std::error_code& error) {
  const std::string broken = broken_link_text(path);
  return broken.empty() ? error.message() : broken + "; create that folder, or remove the link";
}

Descriptor open_file(const std::string& path, int flags, ErrorCode code) {
  int descriptor = -1;
  do descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    const int reason = errno;
    if (const std::string broken = reason == ENOENT ? broken_link_text(path) : ""; !broken.empty())
      throw Error(code, fmt::format("cannot open {}: {}", path, broken));
    errno = reason;
    fail_with_errno(code, "{} {}", (flags & O_TRUNC) != 0 ? "create" : "open", path);
  }
  return Descriptor(descriptor);
}

void require_regular_file(const std::string& path, ErrorCode code, OwnPipe own_pipe) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
  const mode_t kind = status.st_mode & S_IFMT;
  if (own_pipe == OwnPipe::accepted && kind != S_IFDIR && own_descriptor(path) >= 0) return;
  fail(code, "{} is not a regular file; expected a file, found a {}", path,
       kind == S_IFDIR    ? "folder"
       : kind == S_IFIFO  ? "pipe"
       : kind == S_IFSOCK ? "socket"
                          : "device");
}

Descriptor open_regular_file(const std::string& path, ErrorCode code, OwnPipe own_pipe) {
  require_regular_file(path, code, own_pipe);
  const int own = own_pipe == OwnPipe::accepted ? own_descriptor(path) : -1;
  struct stat status {};
  if (own >= 0 && ::fstat(own, &status) == 0 && !S_ISREG(status.st_mode))
    return Descriptor(::fcntl(own, F_DUPFD_CLOEXEC, 0));
  return open_file(path, O_RDONLY | O_NONBLOCK, code);  // O_NONBLOCK: a pipe may have just replaced the file
}

std::uint64_t size_bytes(const Descriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_with_errno(ErrorCode::system_call, "determine the size of {}", path);
  return static_cast<std::uint64_t>(status.st_size);
}

ReadOutcome try_read_at(const Descriptor& file, std::span<std::byte> target, std::uint64_t offset) {
  while (!target.empty()) {
    const ssize_t n =
        ::pread(file.get(), target.data(), std::min(target.size(), kMaxCallBytes), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ReadOutcome::failed;
    if (n == 0) return ReadOutcome::end_of_file;
    target = target.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return ReadOutcome::complete;
}

void read_at(const Descriptor& file, const std::string& path, std::span<std::byte> target, std::uint64_t offset,
             ErrorCode code) {
  const ReadOutcome outcome = try_read_at(file, target, offset);
  if (outcome == ReadOutcome::failed)
    fail_with_errno(code, "read {} bytes at byte {} of {}", target.size(), offset, path);
  require(outcome == ReadOutcome::complete, code, "{} ends before byte {}, where {} bytes from byte {} were expected",
          path, offset + target.size(), target.size(), offset);
}

void write_at(const Descriptor& file, const std::string& path, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n =
        ::pwrite(file.get(), bytes.data(), std::min(bytes.size(), kMaxCallBytes), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENOSPC;
    if (n <= 0) fail_with_errno(ErrorCode::system_call, "write {} bytes at byte {} of {}", bytes.size(), offset, path);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void write_fully(int descriptor, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = ::write(descriptor, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_with_errno(ErrorCode::system_call, "write {}", path);
    content.remove_prefix(static_cast<std::size_t>(n));
  }
}

void set_length(const Descriptor& file, const std::string& path, std::uint64_t length_bytes) {
  if (::ftruncate(file.get(), static_cast<off_t>(length_bytes)) != 0)
    fail_with_errno(ErrorCode::system_call, "make {} {} bytes long", path, length_bytes);
}

void sync(const Descriptor& file, const std::string& path) {
  if (::fsync(file.get()) != 0) fail_with_errno(ErrorCode::system_call, "sync {}", path);
}

std::string read_file(const std::string& path, std::uint64_t max_bytes, ErrorCode code) {
  const Descriptor file = open_regular_file(path, code, OwnPipe::accepted);
  std::string content;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno(code, "read {}", path);
    if (n == 0) return content;
    content.append(buffer.data(), static_cast<std::size_t>(n));
    require(content.size() <= max_bytes, code, "{} has more than {} bytes", path, max_bytes);
  }
}

std::string partial_name(const std::string& path) {
  const std::size_t begin = path.rfind('/') + 1;
  const bool fits = path.size() - begin + kPartial.size() <= NAME_MAX;
  return (fits ? path : path.substr(0, begin) + hash_text(hash_bytes(std::as_bytes(std::span(path))))) +
         std::string(kPartial);
}
bool is_partial_name(const std::string& path) { return path.ends_with(kPartial); }

void publish(const std::string& partial, const std::string& path) {
  sync(open_file(partial, O_RDWR), partial);
  publish_link(partial, path);
}

void publish_link(const std::string& partial, const std::string& path) {
  if (::rename(partial.c_str(), path.c_str()) != 0)
    fail_with_errno(ErrorCode::system_call, "rename {} to {}", partial, path);
  sync_directory_of(path);
}

void remove_partial(const std::string& partial) noexcept {
  if (::unlink(partial.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR)
    std::fprintf(stderr, "cannot remove %s: %s\n", partial.c_str(), system_text(errno).c_str());
}

PendingFile::PendingFile(std::string path, PartialName name)
    : path_(std::move(path)),
      partial_path_(partial_name(name == PartialName::fixed ? path_ : fmt::format("{}.{}", path_, ::getpid()))) {
  struct stat status {};
  const bool exists = ::lstat(path_.c_str(), &status) == 0;
  if (!exists && errno == ENAMETOOLONG) fail_with_errno(ErrorCode::system_call, "create {}", path_);
  require(!exists || S_ISREG(status.st_mode) || S_ISLNK(status.st_mode), ErrorCode::system_call,
          "{} is {} and is not replaced; expected a file, or a name that is free", path_,
          S_ISDIR(status.st_mode) ? "a folder" : "a device or a pipe");
}

PendingFile::~PendingFile() {
  if (!is_published_) remove_partial(partial_path_);
}

Descriptor PendingFile::create() const { return open_file(partial_path_, O_RDWR | O_CREAT | O_TRUNC); }

void PendingFile::publish() {
  lockstep::publish(partial_path_, path_);
  is_published_ = true;
}

Descriptor create_unnamed_file(const std::string& path) {
  // Not O_TMPFILE, which network file systems lack. The name is removed again right below.
  static std::atomic<int> n_files{0};
  const std::string name = partial_name(fmt::format("{}.{}.{}", path, ::getpid(), n_files++));
  Descriptor file = open_file(name, O_RDWR | O_CREAT | O_TRUNC);
  if (::unlink(name.c_str()) != 0) fail_with_errno(ErrorCode::system_call, "remove {}", name);
  return file;
}

void replace_file(const std::string& path, std::string_view content) {
  PendingFile pending(path);
  write_fully(pending.create().get(), content, pending.partial_path());
  pending.publish();
}

namespace {

void remove_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  require(!error, ErrorCode::system_call, "cannot remove {}: {}", path, error.message());
}

}  // namespace

PendingDirectory::PendingDirectory(const std::string& path)
    : path_(path), partial_path_(partial_name(path)), old_path_(partial_name(path + ".old")) {
  struct stat status {};
  const bool exists = ::lstat(path_.c_str(), &status) == 0;
  if (!exists && errno == ENAMETOOLONG) fail_with_errno(ErrorCode::system_call, "create {}", path_);
  require(!exists || S_ISDIR(status.st_mode), ErrorCode::system_call,
          "{} is not a directory and is not replaced; expected a directory, or a name that is free", path_);
  remove_directory(partial_path_);
  if (::mkdir(partial_path_.c_str(), 0777) != 0)
    fail_with_errno(ErrorCode::system_call, "create the directory {}", partial_path_);
}

PendingDirectory::~PendingDirectory() {
  if (is_published_) return;
  std::error_code error;
  std::filesystem::remove_all(partial_path_, error);
  if (error) std::fprintf(stderr, "cannot remove %s: %s\n", partial_path_.c_str(), error.message().c_str());
}

void PendingDirectory::publish() {
  remove_directory(old_path_);
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0)
    replace();
  else
    publish_link(partial_path_, path_);
  is_published_ = true;
  for (const std::string& old : {partial_path_, old_path_}) remove_directory(old);
}

void PendingDirectory::replace() {
  if (::renameat2(AT_FDCWD, partial_path_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0)
    return sync_directory_of(path_);
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    fail_with_errno(ErrorCode::system_call, "exchange {} and {}", partial_path_, path_);
  // NFS and some other file systems cannot swap two names, so for a moment no directory has this name.
  if (::rename(path_.c_str(), old_path_.c_str()) != 0)
    fail_with_errno(ErrorCode::system_call, "rename {} to {}", path_, old_path_);
  try {
    publish_link(partial_path_, path_);
  } catch (const Error&) {
    if (::rename(old_path_.c_str(), path_.c_str()) != 0)
      std::fprintf(stderr, "%s is now %s\n", path_.c_str(), old_path_.c_str());
    throw;
  }
}

}  // namespace lockstep
