// An open checkpoint. Everything is checked against its checksum before it is used: first the user block, then the
// metadata (or all blocks) before HDF5 opens the file, then each tensor as it is read. Bytes are read with pread, not
// through HDF5.
#pragma once

#include <cstdint>
#include <memory>
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
  /// Opens the file and checks its user block.
  explicit Reader(std::string path);

  const std::string& path() const { return path_; }
  const UserBlock& header() const { return header_; }
  /// Hashes the whole file. Throws an Error that names the damaged tensors, or the damaged bytes.
  void check_blocks();
  /// The tensors, sorted by name. The metadata is hashed first, unless that was done before.
  const std::vector<TensorEntry>& tensors();
  const nlohmann::json& state();
  std::int64_t step();  // -1 if the state has no step
  /// Null if there is no such tensor.
  const TensorEntry* find(const std::string& tensor);
  /// Fills `values` and checks the tensor's hash.
  void read(const TensorEntry& tensor, std::span<float> values) const;
  std::vector<float> read(const TensorEntry& tensor) const;
  /// Passes each requested tensor to its target, or none if one of them is missing or has a different shape.
  void load(const std::vector<TensorTarget>& targets);
  /// Whether the tensor's bytes match its hash.
  bool is_sound(const TensorEntry& tensor) const;

 private:
  void load_structure();
  bool metadata_is_sound() const;
  /// Describes the bytes that do not match their checksums.
  std::string describe_damage(const std::vector<std::uint64_t>& found);

  std::string path_;
  Descriptor file_;
  UserBlock header_;
  bool blocks_checked_ = false;
  std::optional<Structure> structure_;
  nlohmann::json state_;
};

/// A tensor of the file, under another name.
NamedTensor tensor_of(std::shared_ptr<const Reader> reader, const std::string& name, const TensorEntry& entry);

}  // namespace lockstep::checkpoint
