// The little of HDF5 that data sets need, without its header: metadata in and out, and where a data set's bytes lie.
// HDF5 has one global lock and may not be sure-footed on damaged files: a file comes here only after its digest was
// checked or in a limited child process (image_file.h). Every size is bounded before memory is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// A data set in a file. Contiguous: its bytes are [offset, offset + size_bytes). In chunks of whole rows (indices of
/// the first dimension): chunk_offsets() says where each begins.
struct DatasetPlace {
  std::string type;  // "uint8", "int32", ...: little-endian
  std::vector<std::uint64_t> dims;
  std::uint64_t size_bytes = 0;
  std::uint64_t offset = 0;       // from the file's beginning; contiguous
  std::uint64_t chunk_rows = 0;   // 0: contiguous
  std::uint64_t chunk_bytes = 0;  // of chunk_rows rows
};

enum class Layouts { contiguous, contiguous_or_chunked };

/// How data are laid out in a new file.
struct Placement {
  /// Data sets of so many bytes and more, and every chunk, begin at a multiple of it. A power of two, or 0: anywhere.
  std::uint64_t alignment_bytes = 0;
  std::uint64_t chunk_bytes = 0;  // 0: contiguous
};

class Hdf5Reader {
 public:
  /// Throws data_format with HDF5's own reason.
  explicit Hdf5Reader(const std::string& path);
  ~Hdf5Reader();

  /// Throws unless it exists, lies in this file and is contiguous, or in chunks of whole rows where `layouts` allows
  /// them (not compressed, external or virtual).
  DatasetPlace dataset(const std::string& name, Layouts layouts = Layouts::contiguous) const;
  /// Says where chunk i of this data set begins in the file; throws when it was never written. HDF5 goes through all
  /// chunks before it, at up to 0.1 us each.
  std::function<std::uint64_t(std::uint64_t chunk)> chunk_offsets(const std::string& name,
                                                                  const DatasetPlace& place) const;

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
  /// A new file that begins with a user block of so many zero bytes (0, or a power of two from 512), which is as long
  /// as the alignment at least. placement.chunk_bytes: of the data sets that will be chunked, or 0.
  Hdf5Writer(const std::string& path, std::uint64_t user_block_bytes, const Placement& placement = {});
  ~Hdf5Writer();

  /// Without times, so that equal content gives equal files. chunk_rows 0: contiguous, allocated at once.
  void create_dataset(const std::string& name, const std::string& type, const std::vector<std::uint64_t>& dims,
                      std::uint64_t chunk_rows = 0);
  /// Rows [first, first + n) along the first dimension. Of a chunked data set (uint8 only) all rows must come, in
  /// order.
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
