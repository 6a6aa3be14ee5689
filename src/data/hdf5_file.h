// The little of HDF5 that data sets need, without its header: metadata in and out, and where a data set's bytes lie.
// HDF5 has one global lock and may not be sure-footed on damaged files: a file comes here only after its digest was
// checked or in a limited child process (image_file.h). Every size is bounded before memory is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// A contiguous data set in a file: its bytes are [offset, offset + size_bytes).
struct DatasetPlace {
  std::string type;  // "uint8", "int32", ...: little-endian
  std::vector<std::uint64_t> dims;
  std::uint64_t offset = 0;  // from the file's beginning
  std::uint64_t size_bytes = 0;
};

class Hdf5Reader {
 public:
  /// Throws data_format with HDF5's own reason.
  explicit Hdf5Reader(const std::string& path);
  ~Hdf5Reader();

  /// Throws unless it exists, lies in this file and is contiguous (not chunked, compressed, external or virtual).
  DatasetPlace dataset(const std::string& name) const;

  // Attributes of the root group; each throws data_format when it is absent or of another kind.
  bool has_attribute(const std::string& name) const;
  std::string text(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  std::vector<float> floats(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Hdf5Writer {
 public:
  /// A new file that begins with a user block of so many zero bytes (0, or a power of two from 512). What has as many
  /// bytes as the alignment, or more, begins at a multiple of it in the file, and the user block is as long at least;
  /// 0: anywhere. A power of two.
  Hdf5Writer(const std::string& path, std::uint64_t user_block_bytes, std::uint64_t alignment_bytes = 0);
  ~Hdf5Writer();

  /// Contiguous, allocated at once, without times, so that equal content gives equal files.
  void create_dataset(const std::string& name, const std::string& type, const std::vector<std::uint64_t>& dims);
  /// Rows [first, first + n) along the first dimension.
  void write_rows(const std::string& name, std::uint64_t first, std::uint64_t n, const void* rows);

  void attribute(const std::string& name, const std::string& text);
  void attribute(const std::string& name, const std::vector<std::string>& texts);
  void attribute(const std::string& name, std::int64_t integer);
  void attribute(const std::string& name, std::span<const float> floats);

  /// Flushes and closes; throws when something could not be written.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data
