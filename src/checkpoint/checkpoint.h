// Checkpoints: HDF5 files with canonical content (row-major, fp32 masters, no padding, no time, host, path or rank
// count). All ranks write a file together, and it is renamed to its final name when it is complete and synced (DESIGN,
// decisions 8 to 10).
//
// A file consists of a 4 KiB HDF5 user block (user_block.h: magic number, format version, and the hash of the list of
// the hashes of the file's 16 MiB blocks); the data sets /parameters/NAME, /optimizer/STATE/NAME and /statistics/NAME
// (running mean and variance), which are contiguous, little-endian fp32 and sorted by name; and the group /state with
// the attribute `json`. The attribute `xxh3` of each data set is the hash of the list of the hashes of its 16 MiB
// blocks. Hashes are xxh3 with 64 bits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "lockstep/communicator.h"
#include "lockstep/error.h"
#include "lockstep/shape.h"

namespace lockstep::checkpoint {

inline constexpr int kFormatVersion = 1;  // of the file: user block, hashes, groups, attributes
inline constexpr int kLayoutVersion = 1;  // of the tensors: their names and what each dimension means

/// Rounds [begin, end) in which ranks gather what is sharded (BackgroundSaver).
struct Rounds {
  int begin = 0, end = 1;
  bool contains(int round) const { return begin <= round && round < end; }
};

/// One fp32 tensor to save. `path` is the name of the data set, "/parameters/layer1.0.conv1.weight". The tensor is read
/// in the layout in which it is stored, which is a single copy, and any thread can convert it to the canonical layout
/// afterwards.
struct TensorSource {
  std::string path;
  Shape shape;
  std::function<void(std::span<float> stored)> read;  // fills it; called only for tensors that this rank writes
  std::size_t n_stored = 0;                           // elements that read() fills; 0: those of the shape
  std::function<void(std::span<const float> stored, std::span<float> canonical)> unpack =
      {};           // null: the stored layout is canonical
  Rounds rounds{};  // read() is called in each of them, and fills what is there

  std::size_t n_canonical() const { return static_cast<std::size_t>(shape.n_elements()); }
  std::size_t n_read() const { return n_stored > 0 ? n_stored : n_canonical(); }
};
/// Reads and unpacks it, in one round.
std::vector<float> read_canonical(const TensorSource& source);
struct TensorTarget {
  std::string path;
  Shape shape;
  std::function<void(std::span<const float> canonical)> write;
};

/// Everything that is not a tensor, as JSON. Keys: format_version, model (family, depth, stem, classes), inference
/// (what the task records for it: image size, mean, standard deviation, class names), precision, step, epoch, samples,
/// global_batch, seed, steps_per_epoch, configuration (the keys that affect what is learned), epoch_sums (loss,
/// correct, samples of the epoch so far), quality (of this checkpoint: greater is better; null: not measured), and, if
/// gradients are scaled, loss_scale (scale, good_steps).
using StateJson = nlohmann::json;

/// Collective. Each rank writes 1/size of the bytes. If a rank fails, all ranks throw, and no file of that name
/// appears.
void save(const std::string& path, const std::vector<TensorSource>& tensors, const StateJson& state, World& world);

/// Checks user block, structure and shapes, then passes on each requested tensor after checking its checksum. Throws an
/// Error that names what is damaged, missing or has another shape. Not collective: every rank reads the file, once.
StateJson load(const std::string& path, const std::vector<TensorTarget>& tensors);

/// All tensors of a file whose blocks have been checked, under the names of the data sets, in their order.
std::vector<NamedTensor> load_all(const std::string& path);

/// `sentence` describes what is damaged, if anything is.
struct Verdict {
  bool good = false;
  ErrorCode code = ErrorCode::checkpoint_damaged;  // if it is not good
  std::string sentence;
  std::int64_t step = -1;
};
Verdict verify(const std::string& path);

/// The files directory/*.h5 whose user block, structure and step are valid, the greatest step first. Tensors are not
/// read: their checksums are checked when they are loaded. Invalid files are named in the log. Not collective: rank 0
/// calls it and broadcasts the result.
struct Candidates {
  std::vector<std::string> paths;
  int n_bad = 0;
};
Candidates newest_first(const std::string& directory);

/// Which checkpoints are kept, besides those that the links in the directory point to (`latest`, `best`).
struct Retention {
  int keep = 0;                 // number of newest checkpoints; 0: all
  std::int64_t keep_every = 0;  // steps that are multiples of it are kept too; 0: none
};
/// The files whose checksums have been verified, by path, and whether they match. No file is read twice for this.
using KnownFiles = std::map<std::string, bool>;
/// Removes all other checkpoints. A checkpoint whose checksums do not match is reported once. It does not count as one
/// of the newest, so that no sound one is removed in its favour. To check this, the files that are not in `known` are
/// read and added to it, but only if there is anything to remove. Files whose step cannot be read are left alone.
void prune(const std::string& directory, const Retention& retention, KnownFiles& known);
/// Removes what interrupted saves left. Returns the names.
std::vector<std::string> remove_partials(const std::string& directory);
/// Creates the relative link directory/name -> file name of target; an existing link is replaced by rename.
void set_link(const std::string& directory, const std::string& name, const std::string& target);

}  // namespace lockstep::checkpoint
