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
};
constexpr const char* kSlowFiles =
    "This file system is slow: use the parallel or scratch file system of the cluster (run.directory, LOCKSTEP_RUNS, "
    "LOCKSTEP_DATA), or one that fewer jobs use at the moment.";
constexpr Rate kRates[] = {{"write and sync", &FolderFacts::write_rate, 1e6, "MB/s", kWriteWarns, kWriteFails},
                           {"read", &FolderFacts::read_rate, 1e6, "MB/s", kReadWarns, kReadFails},
                           {"metadata", &FolderFacts::metadata_rate, 1, "files/s", kMetadataWarns, kMetadataFails}};

void check_space(const std::string& prefix, const std::string& host, const FolderFacts& folder,
                 std::vector<Check>& out) {
  if (folder.free_bytes)
    add(out,
        {.name = prefix + "free space",
         .scope = host,
         .status = status_of(*folder.free_bytes < kFreeSpaceFails, *folder.free_bytes < kFreeSpaceWarns),
         .value = fmt::format("{} GB", three_digits(*folder.free_bytes / 1e9)),
         .expected = fmt::format("at least {:.3g} GB", kFreeSpaceWarns / 1e9),
         .remedy = "Remove old checkpoints, keep fewer (checkpoint.keep), or set run.directory to another file system.",
         .number = *folder.free_bytes / 1e9,
         .unit = "GB"});
  if (!folder.quota_bytes)
    return add(out, {.name = prefix + "quota",
                     .scope = host,
                     .status = Status::unknown,
                     .value = "not reported",
                     .remedy = "This file system has no quota, or only its own command reports it (lfs quota, "
                               "mmlsquota, quota -s)."});
  const double used = *folder.quota_used_bytes, quota = *folder.quota_bytes;
  add(out, {.name = prefix + "quota",
            .scope = host,
            .status = status_of(used >= quota, used > kQuotaUsedWarns * quota),
            .value = fmt::format("{:.3g} of {:.3g} GB", used / 1e9, quota / 1e9),
            .expected = fmt::format("at most {:.0f} %", 100 * kQuotaUsedWarns),
            .remedy = "Remove files of yours, or ask for a larger quota."});
}

void check_node(const std::string& prefix, const std::string& host, const FolderFacts& folder, FolderUse use,
                std::vector<Check>& out) {
  const bool is_of_run = use == FolderUse::run;
  Check check{.name = prefix + "folder", .scope = host};
  if (!folder.problem.empty()) {
    check.status = Status::fail;
    check.value = folder.problem;
    check.expected = is_of_run ? "files can be written" : "files can be read";
    check.remedy = is_of_run
                       ? "Set run.directory (for this command: --runs, or LOCKSTEP_RUNS) to a folder that you may "
                         "write to, on a file system with free space."
                       : "Set LOCKSTEP_DATA (for this command: --data) to the folder of the data sets.";
  } else if (!folder.is_shared) {
    check.status = Status::fail;
    check.value = fmt::format("{} is another folder than that of rank 0", folder.path);
    check.expected = "all nodes see the same files";
    check.remedy = "Use a file system that all nodes share, such as the home or scratch file system.";
  } else {
    check.value =
        fmt::format("{}, {}{}{}", folder.path, folder.kind, folder.striping.empty() ? "" : ", ", folder.striping);
  }
  const bool has_failed = check.status == Status::fail;
  add(out, std::move(check));
  for (const Rate& rate : kRates) {
    const auto& value = folder.*rate.value;
    if (!value) continue;
    const double number = *value / rate.unit;
    add(out, {.name = prefix + rate.name,
              .scope = host,
              .status = status_of(number < rate.fails, number < rate.warns),
              .value = fmt::format("{} {}", three_digits(number), rate.unit_name),
              .expected = fmt::format("at least {:g} {}", rate.warns, rate.unit_name),
              .remedy = kSlowFiles,
              .number = number,
              .unit = rate.unit_name});
  }
  if (folder.rename_seconds && folder.sync_seconds) {
    const double ms = 1e3 * (*folder.sync_seconds + *folder.rename_seconds);
    const std::string value = fmt::format("{:.3g} ms", ms);
    add(out, {.name = prefix + "sync and rename", .scope = host, .value = value, .number = ms, .unit = "ms"});
  }
  if (!has_failed) check_space(prefix, host, folder, out);
}

}  // namespace

std::vector<Check> check_folder(const std::vector<Place>& places, const std::vector<FolderFacts>& folders,
                                FolderUse use) {
  const std::string prefix = use == FolderUse::run ? "run: " : "data: ";
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
  add(out, {.name = prefix + "locks across nodes",
            .scope = problem.empty() ? "all nodes" : host,
            .status = status_of(!problem.empty()),
            .value = problem.empty() ? "they hold" : problem,
            .expected = "a lock is held by one node",
            .remedy = "HDF5 locks its files: ask the operators to mount the file system with locks (Lustre: -o "
                      "flock), or set HDF5_USE_FILE_LOCKING=FALSE."});
  return out;
}

}  // namespace lockstep::doctor
