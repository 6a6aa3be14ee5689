// The positions of data sets in an HDF5 file, without HDF5's header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::hdf5 {

/// A data set in a file. Contiguous: its bytes are [offset, offset + size_bytes). In chunks of whole rows (a row is an
/// index of the first dimension): Reader::chunk_offsets() returns where each chunk begins.
struct DatasetPlace {
  std::string type;  // "uint8", "int32", "float32", ...: little-endian
  std::vector<std::uint64_t> dims;
  std::uint64_t size_bytes = 0;
  std::uint64_t offset = 0;       // from the beginning of the file; contiguous data sets only
  std::uint64_t chunk_rows = 0;   // 0: contiguous
  std::uint64_t chunk_bytes = 0;  // of chunk_rows rows
};

/// How data sets are laid out in a new file.
struct Placement {
  /// Data sets of at least this many bytes, and every chunk, begin at a multiple of it. A power of two, or 0: anywhere.
  std::uint64_t alignment_bytes = 0;
  std::uint64_t chunk_bytes = 0;  // 0: contiguous
};

}  // namespace lockstep::hdf5
