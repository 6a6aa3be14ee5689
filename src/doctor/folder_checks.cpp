// The verdicts on file systems (folder.h).
#include <fmt/format.h>

#include "base/numbers.h"
#include "doctor/folder.h"
#include "doctor/thresholds.h"

namespace lockstep::doctor {
namespace {

struct Rate {
  const char* name;
  std::optional<double> FolderFacts::*value;
  double unit;
  const char* unit_name;
  double warns, fails;  // thresholds: a smaller value warns or fails
  const char* remedy;
};
constexpr const char* kSlowFiles =
    "This file system is slow: use the parallel or scratch file system of the cluster (run.directory, LOCKSTEP_RUNS, "
    "LOCKSTEP_DATA), or one that fewer jobs use at the moment.";
constexpr Rate kRates[] = {
    {"write and sync", &FolderFacts::write_rate, 1e6, "MB/s", kWriteWarns, kWriteFails, kSlowFiles},
    {"read", &FolderFacts::read_rate, 1e6, "MB/s", kReadWarns, kReadFails, kSlowFiles},
    {"metadata", &FolderFacts::metadata_rate, 1, "files/s", kMetadataWarns, kMetadataFails, kSlowFiles}};

/// Also used for values of a folder that all nodes share.
Check make(const std::string& prefix, const char* name, const std::string& host) {
  return {.name = fmt::format("{}: {}", prefix, name), .scope = host, .value = "", .expected = "", .remedy = ""};
}

void check_space(const std::string& prefix, const std::string& host, const FolderFacts& folder,
                 std::vector<Check>& out) {
  if (folder.free_bytes) {
    Check check = make(prefix, "free space", host);
    const bool fails = *folder.free_bytes < kFreeSpaceFails, warns = *folder.free_bytes < kFreeSpaceWarns;
    check.status = fails ? Status::fail : warns ? Status::warn : Status::pass;
    check.number = *folder.free_bytes / 1e9;
    check.unit = "GB";
    check.value = fmt::format("{} GB", three_digits(*check.number));
    check.expected = fmt::format("at least {:.3g} GB", kFreeSpaceWarns / 1e9);
    if (warns)
      check.remedy =
          "Remove old checkpoints, keep fewer (checkpoint.keep), or set run.directory to another file system.";
    out.push_back(std::move(check));
  }
  Check check = make(prefix, "quota", host);
  if (!folder.quota_bytes) {
    check.status = Status::unknown;
    check.value = "not reported";
    check.remedy =
        "This file system has no quota, or only its own command reports it (lfs quota, mmlsquota, quota -s).";
  } else {
    const bool warns = *folder.quota_used_bytes > kQuotaUsedWarns * *folder.quota_bytes;
    const bool fails = *folder.quota_used_bytes >= *folder.quota_bytes;
    check.status = fails ? Status::fail : warns ? Status::warn : Status::pass;
    check.value = fmt::format("{:.3g} of {:.3g} GB", *folder.quota_used_bytes / 1e9, *folder.quota_bytes / 1e9);
    check.expected = fmt::format("at most {:.0f} %", 100 * kQuotaUsedWarns);
    if (warns) check.remedy = "Remove files of yours, or ask for a larger quota.";
  }
  out.push_back(std::move(check));
}

void check_node(const std::string& prefix, const std::string& host, const FolderFacts& folder, FolderUse use,
                std::vector<Check>& out) {
  Check check = make(prefix, "folder", host);
  check.value =
      fmt::format("{}, {}{}{}", folder.path, folder.kind, folder.striping.empty() ? "" : ", ", folder.striping);
  if (!folder.problem.empty()) {
    check.status = Status::fail;
    check.value = folder.problem;
    check.expected = use == FolderUse::run ? "files can be written" : "files can be read";
    check.remedy =
        use == FolderUse::run
            ? "Set run.directory (for this command: --runs, or LOCKSTEP_RUNS) to a folder that you may write "
              "to, on a file system with free space."
            : "Set LOCKSTEP_DATA (for this command: --data) to the folder of the data sets.";
  } else if (!folder.is_shared) {
    check.status = Status::fail;
    check.value = fmt::format("{} is another folder than that of rank 0", folder.path);
    check.expected = "all nodes see the same files";
    check.remedy = "Use a file system that all nodes share, such as the home or scratch file system.";
  }
  const bool has_failed = check.status == Status::fail;
  out.push_back(std::move(check));
  for (const Rate& rate : kRates) {
    const auto& value = folder.*rate.value;
    if (!value) continue;
    check = make(prefix, rate.name, host);
    const double number = *value / rate.unit;
    check.status = number < rate.fails ? Status::fail : number < rate.warns ? Status::warn : Status::pass;
    check.number = number;
    check.unit = rate.unit_name;
    check.value = fmt::format("{} {}", three_digits(number), rate.unit_name);
    check.expected = fmt::format("at least {:g} {}", rate.warns, rate.unit_name);
    if (check.status != Status::pass) check.remedy = rate.remedy;
    out.push_back(std::move(check));
  }
  if (folder.rename_seconds && folder.sync_seconds) {
    check = make(prefix, "sync and rename", host);
    check.number = 1e3 * (*folder.sync_seconds + *folder.rename_seconds);
    check.unit = "ms";
    check.value = fmt::format("{:.3g} ms", *check.number);
    out.push_back(std::move(check));
  }
  if (!has_failed) check_space(prefix, host, folder, out);
}

}  // namespace

std::vector<Check> check_folder(const std::vector<Place>& places, const std::vector<FolderFacts>& folders,
                                FolderUse use) {
  const std::string prefix = use == FolderUse::run ? "run" : "data";
  std::vector<Check> out;
  int n_nodes = 0;
  std::string problem, host;
  bool are_measured = true;
  for (std::size_t r = 0; r < folders.size(); ++r) {
    if (places[r].local_rank != 0) continue;
    ++n_nodes;
    check_node(prefix, places[r].host, folders[r], use, out);
    are_measured = are_measured && folders[r].problem.empty() && folders[r].is_shared && folders[r].is_writable;
    if (!folders[r].lock_problem.empty() && problem.empty()) {
      problem = folders[r].lock_problem;
      host = places[r].host;
    }
  }
  if (n_nodes == 1 || !are_measured) return out;
  Check check = make(prefix, "locks across nodes", problem.empty() ? "all nodes" : host);
  check.status = problem.empty() ? Status::pass : Status::fail;
  check.value = problem.empty() ? "they hold" : problem;
  check.expected = "a lock is held by one node";
  if (!problem.empty())
    check.remedy =
        "HDF5 locks its files: ask the operators to mount the file system with locks (Lustre: -o flock), or "
        "set HDF5_USE_FILE_LOCKING=FALSE.";
  out.push_back(std::move(check));
  return out;
}

}  // namespace lockstep::doctor
