#include "base/directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "lockstep/error.h"

namespace lockstep {
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
  if (!exists && errno == ENAMETOOLONG) fail(ErrorCode::system_call, "cannot create {}: {}", path_, system_text(errno));
  require(!exists || S_ISDIR(status.st_mode), ErrorCode::system_call,
          "{} is not a directory and is not replaced; expected a directory, or a name that is free", path_);
  remove_directory(partial_path_);
  if (::mkdir(partial_path_.c_str(), 0777) != 0)
    fail(ErrorCode::system_call, "cannot create the directory {}: {}", partial_path_, system_text(errno));
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
  if (::renameat2(AT_FDCWD, partial_path_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
    const std::string parent = std::filesystem::absolute(path_).parent_path().string();
    sync(open_file(parent, O_RDONLY | O_DIRECTORY), parent);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    fail(ErrorCode::system_call, "cannot exchange {} and {}: {}", partial_path_, path_, system_text(errno));
  // NFS and some other file systems cannot swap two names, so for a moment no directory has this name.
  if (::rename(path_.c_str(), old_path_.c_str()) != 0)
    fail(ErrorCode::system_call, "cannot rename {} to {}: {}", path_, old_path_, system_text(errno));
  try {
    publish_link(partial_path_, path_);
  } catch (const Error&) {
    if (::rename(old_path_.c_str(), path_.c_str()) != 0)
      std::fprintf(stderr, "%s is now %s\n", path_.c_str(), old_path_.c_str());
    throw;
  }
}

}  // namespace lockstep
