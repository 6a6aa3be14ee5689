// Reads the metadata of an HDF5 file: attributes, and the positions of data sets. The data themselves are read
// with pread by the callers, without HDF5 (DESIGN, decision 9).
//
// HDF5 has one global lock, and it may crash on damaged files. Data sets are therefore opened in a limited child
// process, and checkpoints after their digest was checked. Every size is checked before memory is allocated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::hdf5 {

enum class Layouts { contiguous, contiguous_or_chunked };

/// The codes of a Reader's errors, which depend on the kind of file.
struct ReaderErrors {
  ErrorCode unreadable;  // it is not an HDF5 file, or something in it is missing or has the wrong type
  ErrorCode truncated;
};

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

class Reader {
 public:
  /// Opens the file of that name.
  Reader(const std::string& path, const ReaderErrors& errors);
  /// Opens the file of an open descriptor. `path` is for messages.
  Reader(int descriptor, const std::string& path, const ReaderErrors& errors);
  ~Reader();
  Reader(Reader&&) noexcept;

  /// The paths of all data sets, sorted: "/parameters/fc.bias". Throws if a link leads out of the file or if groups
  /// contain each other.
  std::vector<std::string> datasets() const;
  /// Throws unless the data set exists, is stored in this file, and is contiguous or, if `layouts` allows it, in chunks
  /// of whole rows (not compressed, external or virtual).
  DatasetPlace dataset(const std::string& name, Layouts layouts = Layouts::contiguous) const;
  /// Returns the position of chunk i of this data set in the file, and throws if that chunk was never written. HDF5
  /// passes over all chunks before it, at up to 0.1 us each.
  std::function<std::uint64_t(std::uint64_t chunk)> chunk_offsets(const std::string& name,
                                                                  const DatasetPlace& place) const;

  // Attributes of a group or data set. Each function throws if the attribute is missing or has another type.
  bool has_attribute(const std::string& name, const std::string& object = "/") const;
  std::string text(const std::string& name, const std::string& object = "/") const;
  std::vector<std::string> texts(const std::string& name, const std::string& object = "/") const;
  std::int64_t integer(const std::string& name, const std::string& object = "/") const;
  std::uint64_t unsigned_integer(const std::string& name, const std::string& object = "/") const;
  std::vector<float> floats(const std::string& name, const std::string& object = "/") const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The version of the HDF5 library that is loaded: "1.10.8". The call also starts the library.
std::string version();

}  // namespace lockstep::hdf5
