// A directory of checkpoints: finds the newest one, removes old ones, and maintains the links.
#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/reader.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Candidate {
  std::int64_t step = -1;
  std::string path;
  auto operator<=>(const Candidate&) const = default;
};

std::vector<fs::directory_entry> entries_of(const std::string& directory) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    entries.push_back(*at);
  require(!error || error == std::errc::no_such_file_or_directory, ErrorCode::run_directory, "cannot list {}: {}",
          directory, error.message());
  return entries;
}

/// The files with valid metadata, newest first. Tensors are not read.
template <typename OnBad>
std::vector<Candidate> candidates(const std::string& directory, OnBad on_bad) {
  std::vector<Candidate> found;
  for (const auto& entry : entries_of(directory)) {
    std::error_code error;
    if (entry.path().extension() != ".h5" || entry.is_symlink(error) || !entry.is_regular_file(error)) continue;
    try {
      Reader reader(entry.path().string());
      require(reader.step() >= 0, ErrorCode::checkpoint_damaged, "{} does not contain its step", reader.path());
      found.push_back({reader.step(), reader.path()});
    } catch (const Error& bad) {
      on_bad(bad);
    }
  }
  std::ranges::sort(found, std::greater<>());
  return found;
}

bool is_sound(const std::string& path, KnownFiles& known) {
  if (const auto found = known.find(path); found != known.end()) return found->second;
  try {
    Reader(path).check_blocks();
    return known[path] = true;
  } catch (const Error& bad) {
    log::warning("{}; checkpoint.keep does not count it", bad.what());
    return known[path] = false;
  }
}

}  // namespace

Candidates newest_first(const std::string& directory) {
  Candidates out;
  const auto found = candidates(directory, [&](const Error& bad) {
    log::warning("a checkpoint is not used: {}", bad.what());
    ++out.n_bad;
  });
  for (const Candidate& candidate : found) out.paths.push_back(candidate.path);
  return out;
}

void prune(const std::string& directory, const Retention& retention, KnownFiles& known) {
  if (retention.keep <= 0) return;
  std::set<std::string> linked;
  for (const auto& entry : entries_of(directory)) {
    std::error_code error;
    if (entry.is_symlink(error)) linked.insert(fs::read_symlink(entry.path(), error).filename().string());
  }
  // A file whose step cannot be read may not be an old checkpoint, so it is left alone.
  const auto found = candidates(directory, [](const Error&) {});
  if (found.size() <= static_cast<std::size_t>(retention.keep)) return;
  int n_newer = 0;
  for (const auto& [step, path] : found) {
    if (n_newer < retention.keep) {
      n_newer += is_sound(path, known) ? 1 : 0;
      continue;
    }
    if (linked.contains(fs::path(path).filename().string())) continue;
    if (retention.keep_every > 0 && step % retention.keep_every == 0) continue;
    std::error_code error;
    if (!fs::remove(path, error) && error)
      log::warning("Cannot remove the old checkpoint {}: {}", path, error.message());
  }
}

std::vector<std::string> remove_partials(const std::string& directory) {
  std::vector<std::string> removed;
  for (const auto& entry : entries_of(directory)) {
    std::error_code error;
    if (!is_partial_name(entry.path().string())) continue;
    if (fs::remove(entry.path(), error))
      removed.push_back(entry.path().string());
    else
      log::warning("Cannot remove {}: {}", entry.path().string(), error.message());
  }
  return removed;
}

void set_link(const std::string& directory, const std::string& name, const std::string& target) {
  const fs::path link = fs::path(directory) / name;
  const std::string partial = partial_name(link.string());
  std::error_code error;
  fs::remove(partial, error);  // left by an interrupted call
  fs::create_symlink(fs::path(target).filename(), partial, error);
  require(!error, ErrorCode::system_call, "cannot create the link {}: {}", link.string(), error.message());
  publish_link(partial, link.string());
}

}  // namespace lockstep::checkpoint
