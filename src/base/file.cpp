#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "lockstep/error.h"

namespace lockstep {
namespace {

void sync_or_fail(int descriptor, const std::string& path) {
  require(::fsync(descriptor) == 0, ErrorCode::system_call, "cannot sync {}: {}", path, std::strerror(errno));
}

}  // namespace

void DescriptorTraits::close(Type descriptor) { ::close(descriptor); }

Descriptor open_file(const std::string& path, int flags) {
  Descriptor descriptor(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  require(static_cast<bool>(descriptor), ErrorCode::system_call, "cannot open {}: {}", path, std::strerror(errno));
  return descriptor;
}

void write_fully(int descriptor, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = ::write(descriptor, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, ErrorCode::system_call, "cannot write {}: {}", path, std::strerror(errno));
    content.remove_prefix(static_cast<std::size_t>(n));
  }
}

void replace_file(const std::string& path, std::string_view content) {
  const std::string temporary = fmt::format("{}.tmp.{}", path, ::getpid());
  try {
    const Descriptor file = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    write_fully(file.get(), content, temporary);
    sync_or_fail(file.get(), temporary);
    require(std::rename(temporary.c_str(), path.c_str()) == 0, ErrorCode::system_call, "cannot rename {} to {}: {}",
            temporary, path, std::strerror(errno));
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::string directory = std::filesystem::path(path).parent_path().string();
  const std::string directory_or_here = directory.empty() ? "." : directory;
  sync_or_fail(open_file(directory_or_here, O_RDONLY | O_DIRECTORY).get(), directory_or_here);
}

std::string read_file(const std::string& path, std::uint64_t max_bytes) {
  const Descriptor file = open_file(path, O_RDONLY);
  std::string content;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    require(n >= 0, ErrorCode::system_call, "cannot read {}: {}", path, std::strerror(errno));
    if (n == 0) return content;
    content.append(buffer.data(), static_cast<std::size_t>(n));
    require(content.size() <= max_bytes, ErrorCode::system_call, "{} has more than {} bytes", path, max_bytes);
  }
}

}  // namespace lockstep
