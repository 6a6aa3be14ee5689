#include "base/directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/file.h"

namespace lockstep {
namespace {

void remove_directory(const std::string& path, ErrorCode code) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  require(!error, code, "cannot remove {}: {}", path, error.message());
}

}  // namespace

PendingDirectory::PendingDirectory(const std::string& path, ErrorCode code)
    : path_(path), partial_path_(partial_name(path)), old_path_(partial_name(path + ".old")), code_(code) {
  struct stat status {};
  const bool exists = ::lstat(path_.c_str(), &status) == 0;
  if (!exists && errno == ENAMETOOLONG) fail(code_, "cannot create {}: {}", path_, system_text(errno));
  require(!exists || S_ISDIR(status.st_mode), code_,
          "{} is not a directory and is not replaced; expected a directory, or a name that is free", path_);
  remove_directory(partial_path_, code_);
  if (::mkdir(partial_path_.c_str(), 0777) != 0)
    fail(code_, "cannot create the directory {}: {}", partial_path_, system_text(errno));
}

PendingDirectory::~PendingDirectory() {
  if (is_published_) return;
  std::error_code error;
  std::filesystem::remove_all(partial_path_, error);
  if (error) std::fprintf(stderr, "cannot remove %s: %s\n", partial_path_.c_str(), error.message().c_str());
}

void PendingDirectory::publish() {
  remove_directory(old_path_, code_);
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0)
    replace();
  else
    publish_link(partial_path_, path_, code_);
  is_published_ = true;
  for (const std::string& old : {partial_path_, old_path_}) remove_directory(old, code_);
}

void PendingDirectory::replace() {
  if (::renameat2(AT_FDCWD, partial_path_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
    const std::string parent = std::filesystem::absolute(path_).parent_path().string();
    sync(open_file(parent, O_RDONLY | O_DIRECTORY, code_), parent, code_);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    fail(code_, "cannot exchange {} and {}: {}", partial_path_, path_, system_text(errno));
  // NFS and some other file systems cannot swap two names, so for a moment no directory has this name.
  if (::rename(path_.c_str(), old_path_.c_str()) != 0)
    fail(code_, "cannot rename {} to {}: {}", path_, old_path_, system_text(errno));
  try {
    publish_link(partial_path_, path_, code_);
  } catch (const Error&) {
    if (::rename(old_path_.c_str(), path_.c_str()) != 0)
      std::fprintf(stderr, "%s is now %s\n", path_.c_str(), old_path_.c_str());
    throw;
  }
}

}  // namespace lockstep
