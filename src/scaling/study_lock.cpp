#include "scaling/study_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "base/printable.h"
#include "base/process.h"
#include "lockstep/error.h"

namespace lockstep::scaling {
namespace {

std::string this_host() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

struct Holder {
  std::string host;
  long pid = 0;
  unsigned long long start_ticks = 0;
};

Holder holder_in(const std::string& text) {
  Holder holder;
  std::istringstream(text) >> holder.host >> holder.pid >> holder.start_ticks;
  return holder;
}

bool is_gone(const Holder& holder) {
  if (holder.host != this_host() || holder.pid <= 0) return false;
  const auto facts = process_facts(holder.pid);
  return !facts || facts->start_ticks != holder.start_ticks;
}

}  // namespace

StudyLock::StudyLock(const std::string& directory) : path_(directory + "/lock") {
  const auto facts = process_facts(::getpid());
  content_ = fmt::format("{} {} {}\n", this_host(), ::getpid(), facts ? facts->start_ticks : 0);
  constexpr int kAttempts = 3;  // another process may acquire the lock that this one has just removed
  for (int i = 0; i < kAttempts; ++i) {
    if (try_once()) return;
    remove_left();
  }
  fail(ErrorCode::run_locked, "{} is in use by another `lockstep scaling run`", directory);
}

bool StudyLock::try_once() {
  const Descriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    require(errno == EEXIST, ErrorCode::system_call, "cannot create {}: {}", path_, system_text(errno));
    return false;
  }
  try {
    write_fully(file.get(), content_, path_);
  } catch (const Error&) {
    ::unlink(path_.c_str());
    throw;
  }
  return true;
}

/// Removes the lock if its process is gone, and throws if the process may still exist.
void StudyLock::remove_left() {
  std::string text;
  try {
    text = read_file(path_);
  } catch (const Error&) {
    return;  // its owner has just removed it
  }
  const Holder holder = holder_in(text);
  require(is_gone(holder), ErrorCode::run_locked,
          "{} says that process {} on {} works on this study; if it no longer exists, remove that file", path_,
          holder.pid, holder.host.empty() ? "an unknown host" : printable(holder.host));
  const std::string aside = fmt::format("{}.{}.{}", path_, this_host(), ::getpid());
  if (::rename(path_.c_str(), aside.c_str()) == 0) ::unlink(aside.c_str());
}

StudyLock::~StudyLock() {
  try {
    if (read_file(path_) == content_) ::unlink(path_.c_str());
  } catch (const std::exception&) {  // the lock is gone already
  }
}

}  // namespace lockstep::scaling
