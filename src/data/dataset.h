// A data set as the training program sees it: numbered samples, each made of named fields of fixed shape. What the
// fields mean is known to the data set and to the task that trains on it (tasks/task.h), and to nobody between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/shape.h"

namespace lockstep::data {

struct Field {
  std::string name;               // "image"
  DType dtype = DType::uint8;     // of its elements
  Shape shape{};                  // of one sample; no dimensions: one element
  std::uint8_t padding_byte = 0;  // fills the places of a batch that no sample has

  std::size_t size_bytes() const { return static_cast<std::size_t>(shape.n_elements()) * lockstep::size_bytes(dtype); }
};

/// Bytes of one sample, all fields together.
inline std::size_t sample_bytes(std::span<const Field> fields) {
  std::size_t sum = 0;
  for (const Field& field : fields) sum += field.size_bytes();
  return sum;
}

struct DatasetInfo {
  std::string path;  // or "synthetic"
  std::int64_t n_samples = 0;
  std::size_t reader_bytes = 0;  // at most, what each thread that reads holds besides the fields it fills
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual const DatasetInfo& info() const = 0;
  virtual std::vector<Field> fields() const = 0;
  /// Fills `targets`, one for each of fields() and of its size. Random choices are drawn for this epoch. Thread-safe;
  /// only the first reads take memory. Throws Error when the sample cannot be given (a file that shrank, a bad image).
  virtual void read(std::int64_t sample, std::uint32_t epoch, std::span<const std::span<std::byte>> targets) const = 0;
  /// Called after each batch. Throws data_changed when the files behind the set are no longer what was opened.
  virtual void require_unchanged() const {}
};

}  // namespace lockstep::data
