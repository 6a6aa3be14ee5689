// An open checkpoint. Nothing is believed before its checksum held: the user block first, then the metadata (or all
// blocks) before HDF5 sees the file, then each tensor as it is read. Bytes come by pread, not through HDF5.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/structure.h"
#include "checkpoint/user_block.h"

namespace lockstep::checkpoint {

class Reader {
 public:
  /// Opens and checks the user block.
  explicit Reader(std::string path);

  const std::string& path() const { return path_; }
  const UserBlock& header() const { return header_; }
  /// Hashes the whole file; throws naming the damaged tensors, or the bytes where they cannot be told.
  void check_blocks();
  /// The tensors, in the order of their names. Hashes the metadata first if nothing did yet.
  const std::vector<TensorEntry>& tensors();
  const nlohmann::json& state();
  std::int64_t step();  // -1: the state has none
  /// Null if there is none.
  const TensorEntry* find(const std::string& tensor);
  /// Fills `values` and checks the tensor's hash.
  void read(const TensorEntry& tensor, std::span<float> values) const;
  /// Gives each wanted tensor; nothing where one of them is missing or has another shape.
  void load(const std::vector<TensorTarget>& targets);
  /// Whether the tensor's bytes have its hash.
  bool is_sound(const TensorEntry& tensor) const;

 private:
  void load_structure();
  bool metadata_is_sound() const;
  /// Of bytes that do not have their checksum.
  std::string describe_damage(const std::vector<std::uint64_t>& found);

  std::string path_;
  Descriptor file_;
  UserBlock header_;
  bool blocks_checked_ = false;
  std::optional<Structure> structure_;
  nlohmann::json state_;
};

}  // namespace lockstep::checkpoint
