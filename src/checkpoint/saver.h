// A save divided into phases that are each local to a rank. The caller decides when ranks exchange what a phase
// returned: save() does so immediately; the BackgroundSaver does so between two steps of the training, and passes
// copies of the tensors to write_shard().
//
//   rank 0      places = create(state)                       -> to all
//   each rank   hashes = write_shard(places, read)            -> to rank 0
//   rank 0      length = write_metadata(hashes of all ranks) -> to all
//   each rank   blocks = hash_blocks(length)                 -> to rank 0
//   rank 0      publish(blocks of all ranks)
//
// A phase that throws ends the save: rank 0 then calls discard(). A rank's shard consists of consecutive 16 MiB blocks
// of the tensors in the order of their names, about 1/size of the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/structure.h"

namespace lockstep::checkpoint {

/// Returns the values of a tensor in canonical form. They are valid until the next call.
using TensorReader = std::function<std::span<const float>(std::size_t tensor)>;

class Saver {
 public:
  /// Throws if a name occurs twice or a tensor has no elements.
  Saver(std::string path, const std::vector<TensorSource>& tensors, int rank, int size);

  const std::string& path() const { return path_; }
  /// The indices of the tensors in this rank's shard, in the order in which write_shard() reads them.
  std::vector<std::size_t> tensors_of_shard() const;

  static constexpr int kPhases = 5;
  /// Runs the phase with this number. `before`: what the previous phase returned on all ranks.
  std::string run_phase(int phase, const std::vector<std::string>& before, const StateJson& state,
                        const TensorReader& read);
  void discard() noexcept;

 private:
  std::string create(const StateJson& state);
  std::string write_shard(std::string_view places, const TensorReader& read) const;
  std::string write_metadata(const std::vector<std::string>& hashes);
  std::string hash_blocks(std::string_view length) const;
  void publish(const std::vector<std::string>& blocks);

  /// At most 16 MiB of one tensor, which one rank writes and hashes.
  struct Block {
    std::size_t entry = 0;             // in entries_
    std::uint64_t begin = 0, end = 0;  // bytes of the tensor
    int rank = 0;
  };

  std::string path_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<TensorEntry> entries_;      // in the order of their names
  std::vector<std::size_t> position_;     // of an entry's tensor in the caller's list
  std::vector<Block> blocks_;             // of all ranks, in order
  std::unique_ptr<MetadataImage> image_;  // rank 0, from create() on
  std::uint64_t metadata_end_ = 0;
  std::uint64_t metadata_hash_ = 0;
};

}  // namespace lockstep::checkpoint
