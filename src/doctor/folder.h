// The file systems of the run and of the data: speed, locks, space and quota. The first rank of each node measures; all
// nodes do so at the same time.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "doctor/check.h"
#include "doctor/links.h"

namespace lockstep::doctor {

enum class FolderUse : std::uint8_t { run, data };

struct FolderFacts {
  std::string path{};                          // the folder, or the nearest one above it that exists
  std::string problem{};                       // why not everything could be measured; empty: everything was
  std::string kind{};                          // "ext4", "Lustre"
  std::string striping{};                      // "4 stripes of 1 MB"; empty: not striped
  bool is_writable = false, is_shared = true;  // is_shared: this node sees what rank 0 writes there
  std::optional<double> write_rate{}, sync_seconds{}, read_rate{}, rename_seconds{},
      metadata_rate{};  // bytes/s; files/s
  std::optional<double> free_bytes{}, quota_used_bytes{}, quota_bytes{};
  std::string lock_problem{};  // "" : locks hold across nodes
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FolderFacts, path, problem, kind, striping, is_writable, is_shared, write_rate,
                                   sync_seconds, read_rate, rename_seconds, metadata_rate, free_bytes, quota_used_bytes,
                                   quota_bytes, lock_problem)

/// Collective. Writes at most 64 MB (quick) or 256 MB per node to a folder of its own in `path`, and removes it. A
/// problem is reported in the result and not thrown.
FolderFacts measure_folder(World& world, const std::string& path, FolderUse use, Effort effort);

/// Lustre's description of how a file is striped (the attribute lustre.lov); empty if it is not understood.
std::string striping_in(std::span<const std::byte> lov);

std::vector<Check> check_folder(const std::vector<Place>& places, const std::vector<FolderFacts>& folders,
                                FolderUse use);

}  // namespace lockstep::doctor
