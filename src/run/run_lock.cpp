#include "run/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "base/file.h"
#include "base/outcome.h"
#include "base/process.h"
#include "base/signals.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::run {
namespace {

using std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
namespace fs = std::filesystem;

// What an attempt finds, unless it is a phrase that names the holder. again: a lock was removed.
constexpr const char *kHeld = "held", *kWait = "wait", *kAgain = "again";

constexpr Seconds kBetweenAttempts{0.25};  // a signal ends the waiting within this time

/// The content of the lock file: one "key value" per line. Its length never changes, since it is renewed in place.
struct Holder {
  std::string host, job = "-";
  long pid = 0;
  unsigned long long process_start = 0;  // ticks since the host's start
  long restarts = 0;                     // of the Slurm job
  long since_unix = 0;
  long long heartbeat = 0;

  std::string text() const {
    return fmt::format(
        "host {}\npid {}\nprocess_start {}\nslurm_job {}\nslurm_restarts {}\nsince_unix {}\nheartbeat {:012}\n", host,
        pid, process_start, job, restarts, since_unix, heartbeat);
  }
  std::string sentence() const {
    char when[32] = "";
    const std::time_t since = since_unix;
    std::tm local{};
    if (::localtime_r(&since, &local)) std::strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    return fmt::format("process {} on {}{}, since {}", pid, host, job == "-" ? "" : fmt::format(" (Slurm job {})", job),
                       when);
  }
};

/// The start time of a process; 0 if it does not exist, or only as a zombie.
unsigned long long process_start(long pid) {
  const auto facts = process_facts(pid);
  return facts ? facts->start_ticks : 0;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : "-";
}

Holder myself(const std::string& host) {
  return {.host = host,
          .job = environment("SLURM_JOB_ID"),
          .pid = ::getpid(),
          .process_start = process_start(::getpid()),
          .restarts = std::atol(environment("SLURM_RESTART_COUNT").c_str()),
          .since_unix = std::time(nullptr)};
}

/// Returns false if the text is not a complete lock: another job is just writing it, or it is damaged.
bool parse(const std::string& text, Holder& holder) {
  std::istringstream in(text);
  std::string key[7];
  in >> key[0] >> holder.host >> key[1] >> holder.pid >> key[2] >> holder.process_start >> key[3] >> holder.job >>
      key[4] >> holder.restarts >> key[5] >> holder.since_unix >> key[6] >> holder.heartbeat;
  return !in.fail() && key[0] == "host" && key[6] == "heartbeat";
}

/// Returns an empty string if there is no file.
std::string content_of(const std::string& path) {
  require_regular_file(path, ErrorCode::run_directory);
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Whether the process still exists; no value if it is on another host.
std::optional<bool> exists(const Holder& holder) {
  if (holder.host != host_name()) return std::nullopt;
  const auto start = process_start(holder.pid);
  return start != 0 && start == holder.process_start;
}

}  // namespace

void RunLock::require_free(const std::string& directory) {
  Holder holder;
  const bool is_known = parse(content_of(directory + "/" + kFileName), holder);
  require(!is_known || exists(holder) != true, ErrorCode::run_locked, "{} is in use by {}", directory,
          holder.sentence());
}

std::string RunLock::lost_holder(const std::string& directory) {
  Holder holder;
  return parse(content_of(directory + "/" + kFileName), holder) && exists(holder) == false ? holder.sentence() : "";
}

RunLock::RunLock(const std::string& directory, World& world, const Timing& timing)
    : directory_(directory), path_(directory + "/" + kFileName), timing_(timing) {
  // In short turns, so that no rank waits for long in a collective while rank 0 looks at the lock.
  while (true) {
    const std::string outcome = all_agree(world, [&] { return world.rank() == 0 ? try_once() : std::string(); })[0];
    if (outcome == kHeld) break;
    if (outcome == kAgain) continue;
    require(outcome == kWait, ErrorCode::run_locked, "{} is in use by {}", directory_, outcome);
    stop_if_requested(world);
    std::this_thread::sleep_for(std::min({kBetweenAttempts, timing_.heartbeat / 5, timing_.stale / 5}));
  }
  const SignalsBlocked blocked;  // inherited by the thread
  try {
    if (file_) heartbeat_ = std::thread([this] { beat(); });
  } catch (const std::system_error&) {  // too many threads: the next job must not wait for this one
    if (is_held()) ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
    throw;
  }
}

void RunLock::release() {
  if (!file_) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  end_.notify_all();
  if (heartbeat_.joinable()) heartbeat_.join();
  if (is_held()) ::unlink(path_.c_str());
  ::rmdir(directory_.c_str());  // fails if the directory is not empty
  file_ = {};
}

bool RunLock::is_held() const {
  struct stat mine {
  }, there{};
  return file_ && ::fstat(file_.get(), &mine) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

void RunLock::require_held() const {
  // If the lock disappeared together with its directory, no other job has it.
  require(is_held() || !fs::exists(path_), ErrorCode::run_locked,
          "{} was taken over by another job while this job was suspended", directory_);
}

std::string RunLock::try_once() {
  std::error_code error;
  fs::create_directories(directory_, error);
  require(!error, ErrorCode::run_directory, "the run directory {} cannot be created: {}", directory_,
          folder_problem(directory_, error));
  file_ = Descriptor(::open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
  if (file_) {
    write_lock();
    return kHeld;
  }
  require(errno == EEXIST, ErrorCode::run_directory, "the lock {} cannot be created: {}", path_, std::strerror(errno));

  const std::string seen = content_of(path_);
  Holder holder;
  const Holder me = myself(host_name());
  const bool is_known = parse(seen, holder);
  const std::optional<bool> is_there = is_known ? exists(holder) : std::nullopt;
  if (is_there == true) return holder.sentence();
  const bool is_of_us = is_known && me.job != "-" && holder.job == me.job && me.restarts > holder.restarts;
  if (!is_there && !is_of_us) {
    const std::string who = is_known ? holder.sentence() : "a job that is not named in its lock";
    if (watched_.empty()) {
      log::info("{} is in use by {}: waiting up to {:g} s for its heartbeat", directory_, who, timing_.stale.count());
      watched_ = seen + " ";  // never empty
      watched_since_ = steady_clock::now();
    }
    if (watched_ != seen + " ") return who;
    if (steady_clock::now() - watched_since_ < timing_.stale) return kWait;
  }
  if (!take_over(seen)) return kWait;
  log::info("{} was left locked by {}, which no longer runs: taking over the lock", directory_,
            is_known ? holder.sentence() : "a job that is not named in the lock");
  return kAgain;  // O_EXCL decides who gets it
}

/// A lock that cannot be written, for example on a full disk, must not stay behind: the next job would wait for its
/// owner.
void RunLock::write_lock() {
  try {
    write_fully(file_.get(), myself(host_name()).text(), path_);
  } catch (const Error& error) {
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());  // fails if the directory is not empty
    fail(ErrorCode::run_directory, "{}", error.what());
  }
}

/// Removes the lock that was seen. Two jobs may try this at once: only the lock that was seen is removed, and the new
/// lock of another job is put back.
bool RunLock::take_over(const std::string& seen) {
  const std::string aside = fmt::format("{}.{}.{}", path_, host_name(), ::getpid());
  if (::rename(path_.c_str(), aside.c_str()) != 0) {
    require(errno == ENOENT, ErrorCode::run_directory,
            "the lock {} was left by a job that is gone, but cannot be removed: {}; remove it yourself", path_,
            system_text(errno));
    return false;  // another job was faster
  }
  const bool is_it = content_of(aside) == seen;
  if (!is_it && ::link(aside.c_str(), path_.c_str()) != 0)
    log::warning("cannot put the lock {} back: {}", path_, std::strerror(errno));
  ::unlink(aside.c_str());
  return is_it;
}

void RunLock::beat() {
  Holder me = myself(host_name());
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, timing_.heartbeat, [this] { return ends_; })) {
    ++me.heartbeat;
    const std::string text = me.text();
    // A full disk or a lost server will be reported by the next important write. Here the lock only looks old.
    [[maybe_unused]] const ssize_t n = ::pwrite(file_.get(), text.data(), text.size(), 0);
    ::fdatasync(file_.get());
  }
}

}  // namespace lockstep::run
