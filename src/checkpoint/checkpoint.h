// Checkpoints: HDF5 files whose content is canonical (row-major, fp32 masters, no padding, no time, host, path or rank
// count), written by all ranks together, named by rename when whole and synced (DESIGN, decisions 8 to 10).
//
// File: a 4 KiB HDF5 user block (user_block.h: the mark, the format version, the hash of the list of the hashes of the
// file's 16 MiB blocks), then /parameters/NAME, /optimizer/STATE/NAME, /statistics/NAME (running mean and variance),
// contiguous, little-endian fp32, in the order of their names, and the group /state with the attribute `json`. Each
// data set carries as attribute `xxh3` the hash of the list of the hashes of its 16 MiB pieces. Hashes are xxh3, 64
// bits.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lockstep/communicator.h"
#include "lockstep/error.h"
#include "lockstep/shape.h"

namespace lockstep::checkpoint {

inline constexpr int kFormatVersion = 1;

/// One fp32 tensor, canonical. `path` is the data set's name, "/parameters/layer1.0.conv1.weight".
struct TensorSource {
  std::string path;
  Shape shape;
  std::function<void(std::span<float> canonical)> read;  // fills it; called only for tensors of this rank's part
};
struct TensorTarget {
  std::string path;
  Shape shape;
  std::function<void(std::span<const float> canonical)> write;
};

/// What is not a tensor, as JSON. Keys: format_version, model (family, depth, stem, classes), precision, step, epoch,
/// samples, global_batch, seed, steps_per_epoch, configuration (what the learning depends on), best (metric so far).
using StateJson = nlohmann::json;

/// Collective. Writes to a temporary name beside `path`, syncs, renames, syncs the directory. Each rank writes 1/size
/// of the bytes. Throws on every rank when any rank failed; then no file of that name has appeared.
void save(const std::string& path, const std::vector<TensorSource>& tensors, const StateJson& state, World& world);

/// Checks digest and structure, then gives each wanted tensor. Throws naming what is missing or of another shape.
/// Not collective: every rank reads the file.
StateJson load(const std::string& path, const std::vector<TensorTarget>& tensors);
StateJson load_state(const std::string& path);  // digest checked

/// The whole file in memory, for export, diff and info.
struct LoadedTensor {
  std::string path;
  Shape shape;
  std::vector<float> values;
};
struct LoadedFile {
  std::vector<LoadedTensor> tensors;  // in the order of their names
};
LoadedFile load_all(const std::string& path);

/// Sound or not: the sentence says what is damaged.
struct Verdict {
  bool good = false;
  ErrorCode code = ErrorCode::checkpoint_damaged;  // where it is not good
  std::string sentence;
  std::int64_t step = -1;
};
Verdict verify(const std::string& path);

/// The good file with the greatest step among directory/*.h5; empty when none. Bad ones are named in the log and
/// skipped. Not collective: rank 0 calls it and broadcasts.
std::string newest_good(const std::string& directory);

/// Removes all but the `keep` newest and what links in the directory name (`latest`, `best`); keep 0: none removed.
/// Files whose step cannot be read are left alone.
void prune(const std::string& directory, int keep);
/// Makes the relative link directory/name -> target's file name, replacing it by rename.
void set_link(const std::string& directory, const std::string& name, const std::string& target);

}  // namespace lockstep::checkpoint
