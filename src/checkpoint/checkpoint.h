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

inline constexpr int kFormatVersion = 1;  // of the file: user block, hashes, groups, attributes
inline constexpr int kLayoutVersion = 1;  // of the tensors: their names and what each dimension means

/// One fp32 tensor to save. `path` is the data set's name, "/parameters/layer1.0.conv1.weight". It is read as it is
/// stored, which is one copy of memory, and made canonical afterwards, by any thread.
struct TensorSource {
  std::string path;
  Shape shape;
  std::function<void(std::span<float> stored)> read;  // fills it; called only for tensors of this rank's part
  std::size_t n_stored = 0;                           // elements that read() gives; 0: those of the shape
  std::function<void(std::span<const float> stored, std::span<float> canonical)> unpack = {};  // null: read() gave it

  std::size_t n_canonical() const { return static_cast<std::size_t>(shape.n_elements()); }
  std::size_t n_read() const { return n_stored > 0 ? n_stored : n_canonical(); }
};
/// Both at once.
std::vector<float> read_canonical(const TensorSource& source);
struct TensorTarget {
  std::string path;
  Shape shape;
  std::function<void(std::span<const float> canonical)> write;
};

/// What is not a tensor, as JSON. Keys: format_version, model (family, depth, stem, classes), precision, step, epoch,
/// samples, global_batch, seed, steps_per_epoch, configuration (what the learning depends on), epoch_sums
/// (loss, correct, samples of the epoch so far), quality (of this checkpoint: greater is better; null: not measured),
/// and where gradients are scaled loss_scale (scale, good_steps).
using StateJson = nlohmann::json;

/// Collective. Writes to a temporary name beside `path`, syncs, renames, syncs the directory. Each rank writes 1/size
/// of the bytes. Throws on every rank when any rank failed; then no file of that name has appeared.
void save(const std::string& path, const std::vector<TensorSource>& tensors, const StateJson& state, World& world);

/// Checks header, structure and shapes, then gives each wanted tensor, whose checksum held. Throws naming what is
/// damaged, missing or of another shape. Not collective: every rank reads the file, once.
StateJson load(const std::string& path, const std::vector<TensorTarget>& tensors);

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

/// directory/*.h5 with sound header, structure and step, the greatest step first. Tensors are not read: their checksums
/// are checked as they are loaded. The others are named in the log. Not collective: rank 0 calls it and broadcasts.
struct Candidates {
  std::vector<std::string> paths;
  int n_bad = 0;
};
Candidates newest_first(const std::string& directory);

/// Which checkpoints stay, besides those that links in the directory name (`latest`, `best`).
struct Retention {
  int keep = 0;                 // the newest; 0: all
  std::int64_t keep_every = 0;  // steps: those of its multiples; 0: none
};
/// Removes the others. Files whose step cannot be read are left alone.
void prune(const std::string& directory, const Retention& retention);
/// Removes what interrupted saves left; the names.
std::vector<std::string> remove_partials(const std::string& directory);
/// Makes the relative link directory/name -> target's file name, replacing it by rename.
void set_link(const std::string& directory, const std::string& name, const std::string& target);

}  // namespace lockstep::checkpoint
