// The HDF5 side of a checkpoint; the only file here that calls HDF5.
//
// HDF5 never touches the file system when a checkpoint is written: it works on a sparse file in memory, where data
// sets are holes. What is not a hole, the metadata, is then copied beside the tensors. So a full disk is met only by
// our own calls, and HDF5, which cannot let go of a file that it failed to write, is not harmed by it.
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
  std::uint64_t offset = 0;  // bytes, from the file's begin
  std::uint64_t hash = 0;    // attribute xxh3: of the list of the hashes of its 16 MiB pieces

  std::uint64_t size_bytes() const { return static_cast<std::uint64_t>(shape.n_elements()) * sizeof(float); }
};

/// Room enough for the structure and the state: one block of HDF5 metadata, so that all of it lies before the tensors.
std::uint64_t metadata_allowance_bytes(const std::vector<TensorEntry>& tensors, const std::string& state_text);

/// A checkpoint's structure in memory, made without its tensors.
class MetadataImage {
 public:
  /// Makes groups and data sets in the order given; their offsets are then known.
  MetadataImage(std::vector<TensorEntry> tensors, const std::string& state_text);
  ~MetadataImage();
  MetadataImage(const MetadataImage&) = delete;
  MetadataImage& operator=(const MetadataImage&) = delete;

  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Enters the tensors' hashes and ends the HDF5 part. Once.
  void finish(std::span<const std::uint64_t> hashes);

  // After finish():
  std::uint64_t file_bytes() const;
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };
  /// What is not user block and not tensor, in order.
  std::vector<Range> metadata_ranges() const;
  std::vector<std::byte> read(const Range& range) const;

 private:
  struct Hdf5;
  std::unique_ptr<Hdf5> hdf5_;
  std::vector<TensorEntry> tensors_;
};

struct Structure {
  std::string state_text;
  std::vector<TensorEntry> tensors;  // in the order of their names
};
/// Of a file whose metadata is known to be sound. Each extent is checked against the file's length. `path` is for
/// messages.
Structure read_structure(int descriptor, const std::string& path, std::uint64_t file_bytes);

}  // namespace lockstep::checkpoint
