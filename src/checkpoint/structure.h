// The HDF5 part of a checkpoint: its groups, data sets and attributes, and the positions of its tensors.
//
// HDF5 never touches the file system when a checkpoint is written: it works on a sparse file in memory, in which the
// tensors are holes. The rest, which is the metadata, is then copied to its place around the tensors. A full disk is
// therefore detected by our own calls, and not by HDF5, which cannot close a file that it failed to write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/shape.h"

namespace lockstep::checkpoint {

/// A contiguous fp32 data set: its name, and its place in the file.
struct TensorEntry {
  std::string path;
  Shape shape;
  std::uint64_t offset = 0;  // bytes, from the beginning of the file
  std::uint64_t hash = 0;    // attribute xxh3: of the list of the hashes of its 16 MiB blocks

  std::uint64_t size_bytes() const { return static_cast<std::uint64_t>(shape.n_elements()) * sizeof(float); }
};

/// A size that is sufficient for the structure and the state in one block of HDF5 metadata, so that all of it precedes
/// the tensors.
std::uint64_t metadata_allowance_bytes(const std::vector<TensorEntry>& tensors, const std::string& state_text);

/// A checkpoint's structure in memory, created without its tensors.
class MetadataImage {
 public:
  /// Creates groups and data sets in the order of the list. Their offsets are known afterwards.
  MetadataImage(std::vector<TensorEntry> tensors, const std::string& state_text);
  ~MetadataImage();
  MetadataImage(const MetadataImage&) = delete;
  MetadataImage& operator=(const MetadataImage&) = delete;

  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Stores the tensors' hashes and completes the HDF5 part. To be called once.
  void finish(std::span<const std::uint64_t> hashes);

  // After finish():
  std::uint64_t file_bytes() const;
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };
  /// The ranges that belong neither to the user block nor to a tensor, in order.
  std::vector<Range> metadata_ranges() const;
  std::vector<std::byte> read(const Range& range) const;

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
  std::vector<TensorEntry> tensors_;
};

struct Structure {
  std::string state_text;
  std::vector<TensorEntry> tensors;  // in the order of their names
};
/// Reads a file whose metadata is known to be valid. The position of each tensor is checked against the file's length.
/// `path` is for messages.
Structure read_structure(int descriptor, const std::string& path, std::uint64_t file_bytes);

}  // namespace lockstep::checkpoint
