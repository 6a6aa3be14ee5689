#include "run/run_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <mutex>
#include <span>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/outcome.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "run/run_lock.h"

namespace lockstep::run {

namespace fs = std::filesystem;

namespace {

// Two seconds in total: within this time, a network file system must show a new file to other nodes that list its
// directory.
constexpr int kLooks = 20;
constexpr std::chrono::milliseconds kBetweenLooks{100};
constexpr const char* kStatus = "status";

void fill(std::string& name, const std::string& field, const std::string& value) {
  for (std::size_t at = name.find(field); at != std::string::npos; at = name.find(field, at + value.size()))
    name.replace(at, field.size(), value);
}

std::mutex status_mutex;  // the helper thread that watches for signals writes the status, too

/// Overwrites in place: a full disk has no room for a new file, but the old file keeps its block.
void overwrite(const std::string& path, const std::string& content) {
  const Descriptor file = open_file(path, O_WRONLY | O_NONBLOCK);  // a pipe does not wait
  write_at(file, path, std::as_bytes(std::span(content)), 0);
  set_length(file, path, content.size());
}

/// Gives an error of the system the remedy for a run directory.
void with_remedy(const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    fail(ErrorCode::run_directory, "{}", error.what());
  }
}

}  // namespace

RunDirectory::RunDirectory(const Config& config) : path_(config.run.path()), name_template_(config.checkpoint.name) {
  fill(name_template_, "{start}", std::to_string(config.data.start));
  fill(name_template_, "{end}", std::to_string(config.data.end));
}

void RunDirectory::set_model_name(const std::string& file_name) { fill(name_template_, "{model}", file_name); }

std::string RunDirectory::checkpoint(std::int64_t step, std::int64_t steps_per_epoch) const {
  std::string name = name_template_;
  if (step % steps_per_epoch != 0 && name.find("{step}") == std::string::npos) name += "-step-{step}";
  fill(name, "{step}", fmt::format("{:08d}", step));
  fill(name, "{epoch}", std::to_string(step / steps_per_epoch));
  return checkpoints() + "/" + name + ".h5";
}

void RunDirectory::create() const {
  std::error_code error;
  fs::create_directories(checkpoints(), error);
  require(!error, ErrorCode::run_directory, "the run directory {} cannot be created: {}", path_,
          folder_problem(path_, error));
}

void RunDirectory::check_is_shared(World& world) const {
  if (world.n_nodes() == 1) return;
  // The name is new each time, because file systems cache for seconds that a name does not exist.
  std::string token =
      fmt::format("{}.{}", fs::path(path_).filename().string(), Clock::now().time_since_epoch().count());
  token = world.all_gather(token).front();
  const std::string probe = file(".seen-" + token);
  all_agree(world, [&] {
    if (world.rank() == 0) write_file(".seen-" + token, token);
  });
  bool is_seen = fs::exists(probe);
  for (int i = 0; i < kLooks && !is_seen; ++i) {
    std::this_thread::sleep_for(kBetweenLooks);
    std::error_code error;
    (void)std::distance(fs::directory_iterator(path_, error), {});  // makes some file systems look again
    is_seen = fs::exists(probe);
  }
  const std::vector<std::string> blind = world.all_gather(is_seen ? "" : world.host());
  std::error_code gone;
  if (world.rank() == 0) fs::remove(probe, gone);
  const auto found = std::find_if(blind.begin(), blind.end(), [](const std::string& host) { return !host.empty(); });
  if (found == blind.end()) return;
  fail(ErrorCode::nodes_differ, "the run directory {} is not shared: {} does not see the files that rank 0 writes",
       fs::absolute(path_).lexically_normal().string(), *found);
}

void RunDirectory::check_can_be_created() const {
  std::error_code error;
  fs::path place = fs::absolute(path_, error).lexically_normal();
  while (!fs::exists(fs::symlink_status(place, error)) && place.has_relative_path()) place = place.parent_path();
  require(fs::is_directory(place, error), ErrorCode::run_directory, "the run directory {} cannot be created: {}", path_,
          broken_link_text(path_).empty() ? place.string() + " is not a directory" : folder_problem(path_, error));
  // The arguments of require() are evaluated in any order, and errno is one of them.
  const bool is_writable = ::access(place.c_str(), W_OK | X_OK) == 0;
  require(is_writable, ErrorCode::run_directory, "the run directory {} cannot be written to: {}: {}", path_,
          place.string(), system_text(errno));
}

void RunDirectory::check_files() const {
  for (const char* name : {"config.yaml", kStatus, "log.txt", "metrics.jsonl", "metrics.json", "algorithms.json"})
    require_regular_file(file(name), ErrorCode::run_directory);
  std::error_code error;
  for (const char* name : {"checkpoints", "tensorboard", "usage"})
    require(is_folder(file(name)) || !fs::exists(fs::symlink_status(file(name), error)), ErrorCode::run_directory,
            "{} is not a folder; expected a folder, or a name that is free", file(name));
}

void RunDirectory::require_present() const {
  if (is_there(file(kStatus))) return;
  require(is_there(file("config.yaml")), ErrorCode::run_directory,
          "{} was removed or emptied while this run was using it: the run ends, since what it wrote there is lost",
          path_);
  log::warning("{} was removed: it is written again", file(kStatus));
  write_status("running");
}

std::string RunDirectory::set_aside() const {
  std::error_code error;
  fs::path place = fs::path(path_).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();  // "runs/name/"
  if (fs::is_symlink(place)) {
    place = fs::canonical(place, error);
    require(!error, ErrorCode::run_directory, "the link {} cannot be followed: {}", path_, error.message());
  }
  const fs::path lock = place / RunLock::kFileName;
  const auto is_content = [&](const fs::directory_entry& entry) { return entry.path() != lock; };
  if (!fs::exists(place) || std::none_of(fs::directory_iterator(place), {}, is_content)) return "";
  std::string target;
  for (int i = 1; target.empty() || fs::exists(target); ++i) target = place.string() + "." + std::to_string(i);
  fs::rename(place, target, error);
  require(!error, ErrorCode::run_directory, "{} cannot be moved to {}: {}", place.string(), target, error.message());
  // A link, unlike a rename, fails if another job has already locked the new directory.
  const fs::path lock_moved = fs::path(target) / RunLock::kFileName;
  fs::create_directories(place, error);
  if (fs::exists(lock_moved)) fs::create_hard_link(lock_moved, lock, error);
  require(!error, ErrorCode::run_directory, "the lock {} cannot be created: {}", lock.string(), error.message());
  fs::remove(lock_moved);
  return target;
}

void RunDirectory::write_status(const std::string& status) const {
  const std::lock_guard lock(status_mutex);
  set_status(status);
}

bool RunDirectory::replace_status(const std::string& before, const std::string& status) const {
  const std::lock_guard lock(status_mutex);
  if (read_file(kStatus) != before + "\n") return false;
  set_status(status);
  return true;
}

void RunDirectory::set_status(const std::string& status) const {
  const std::string content = status + "\n";
  try {
    write_file(kStatus, content);
  } catch (const Error&) {
    if (!is_there(file(kStatus))) throw;
    with_remedy([&] { overwrite(file(kStatus), content); });
  }
}

void RunDirectory::write_file(const std::string& name, const std::string& content) const {
  with_remedy([&] { replace_file(file(name), content); });
}

std::string RunDirectory::read_file(const std::string& name) const {
  return fs::exists(file(name)) ? lockstep::read_file(file(name)) : "";
}

std::string answers_path(const std::string& run, std::int64_t step, bool is_of_averages) {
  return fmt::format("{}/answers/{}step-{:08}.jsonl", run, is_of_averages ? "ema-" : "", step);
}

}  // namespace lockstep::run
