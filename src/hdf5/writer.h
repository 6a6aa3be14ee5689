// Writes HDF5 files. Files with equal content are equal byte for byte: neither data sets nor groups carry times.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::hdf5 {

enum class FileFormat { earliest, v110 };

/// How data sets are laid out in a new file.
struct Placement {
  /// Data sets of at least this many bytes, and every chunk, begin at a multiple of it. A power of two, or 0: anywhere.
  std::uint64_t alignment_bytes = 0;
  std::uint64_t chunk_bytes = 0;  // 0: contiguous
};

struct WriterOptions {
  /// The file begins with this many zero bytes (0, or a power of two from 512 on), or with as many as the alignment if
  /// that is more.
  std::uint64_t user_block_bytes = 0;
  /// placement.chunk_bytes: of the data sets that will be chunked, or 0. Chunks need format v110.
  Placement placement = {};
  FileFormat format = FileFormat::earliest;
  std::uint64_t metadata_block_bytes = 0;  // HDF5 allocates metadata in blocks of this size; 0: its default
  std::string name = {};                   // of the file in messages; empty: its path
};

class Writer {
 public:
  Writer(const std::string& path, const WriterOptions& options);
  /// Abandons a file that was not closed: it stays open until the process ends.
  ~Writer();

  void create_group(const std::string& path);

  // `type` is "uint8", "uint16", "int32", "uint32", "uint64" or "float32"; no dims make a scalar.

  /// A data set that write_rows() fills. chunk_rows 0: contiguous, allocated immediately.
  void create_dataset(const std::string& name, const std::string& type, const std::vector<std::uint64_t>& dims,
                      std::uint64_t chunk_rows = 0);
  /// Rows [first, first + n) along the first dimension. A chunked data set (uint8 only) must get all rows, in order.
  void write_rows(const std::string& name, std::uint64_t first, std::uint64_t n, const void* rows);
  /// A contiguous data set that the caller fills without HDF5. Creates its groups. Returns its offset in the file.
  std::uint64_t reserve_dataset(const std::string& path, const std::string& type,
                                const std::vector<std::uint64_t>& dims);

  // Attributes of the root group
  void attribute(const std::string& name, const std::string& text);
  void attribute(const std::string& name, const std::vector<std::string>& texts);
  void attribute(const std::string& name, std::int64_t integer);
  void attribute(const std::string& name, std::span<const float> floats);

  // Attributes of a group or data set
  /// Stored with a fixed length.
  void fixed_text(const std::string& object, const std::string& name, const std::string& text);
  /// Creates the attribute, or replaces its value.
  void unsigned_integer(const std::string& object, const std::string& name, std::uint64_t value);

  /// Flushes and closes the file. Throws if something could not be written.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::hdf5
