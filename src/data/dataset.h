// A data set as the training program sees it: numbered samples, each made of named fields of fixed shape. Only the data
// set and the task that trains on it (tasks/task.h) know what the fields mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/shape.h"

namespace lockstep::data {

/// How the samples of a field lie in a batch. A set has at most one packed field, and then also one field with the
/// places of its samples.
enum class Packing : std::uint8_t {
  fixed,   // sample i is the i-th of equal size
  packed,  // samples have different sizes, and lie one after another, in any order; nothing is padded
  place    // an int32: where the packed sample begins, in units of kPackedUnitBytes; the loader fills it
};
inline constexpr std::size_t kPackedUnitBytes = 16;

struct Field {
  std::string name;               // "image"
  DType dtype = DType::uint8;     // of its elements
  Shape shape{};                  // of one sample; no dimensions: one element; packed: the greatest of each dimension
  std::uint8_t padding_byte = 0;  // fills the rest of a batch that has fewer samples than places
  Packing packing = Packing::fixed;
  std::size_t max_bytes = 0;  // packed: of the largest sample

  /// Bytes in a batch per sample; packed: at most.
  std::size_t size_bytes() const {
    if (packing == Packing::packed) return packed_bytes(max_bytes);
    return static_cast<std::size_t>(shape.n_elements()) * lockstep::size_bytes(dtype);
  }
  /// What a packed sample takes up.
  static constexpr std::size_t packed_bytes(std::size_t sample_bytes) {
    return (sample_bytes + kPackedUnitBytes - 1) / kPackedUnitBytes * kPackedUnitBytes;
  }
};

/// Bytes of one sample, all fields together.
inline std::size_t sample_bytes(std::span<const Field> fields) {
  std::size_t sum = 0;
  for (const Field& field : fields) sum += field.size_bytes();
  return sum;
}

/// The work that a reader thread does per sample, on average. Its time is estimated from this.
struct ReaderWork {
  bool decodes = false;       // JPEG or PNG images; resizing them is part of it
  double read_bytes = 0;      // of a sample that is stored decoded: those that it needs
  double resized_pixels = 0;  // of the results
  double trivial_augment_pixels = 0, color_jitter_pixels = 0;
};

struct DatasetInfo {
  std::string path;  // or "synthetic"
  std::int64_t n_samples = 0;
  // The hash of everything that the file stores, as 16 hexadecimal digits, computed from the hashes in it. Empty if it
  // has none.
  std::string content_hash;
  std::size_t reader_bytes = 0;  // upper bound of the memory of each reader thread besides the fields that it fills
  bool operator==(const DatasetInfo&) const = default;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual const DatasetInfo& info() const = 0;
  virtual std::vector<Field> fields() const = 0;
  /// Bytes of this sample in the packed field, if there is one.
  virtual std::size_t packed_bytes(std::int64_t /*sample*/, std::uint32_t /*epoch*/) const { return 0; }
  /// Fills `targets`, one for each of fields() and of its size; packed: of packed_bytes(). Random choices are drawn for
  /// this epoch. Thread-safe; only the first reads allocate memory. Throws Error if the sample cannot be read (a file
  /// that shrank, a bad image).
  virtual void read(std::int64_t sample, std::uint32_t epoch, std::span<const std::span<std::byte>> targets) const = 0;
  /// What samples are called in reports.
  virtual std::string sample_word() const { return "samples"; }
  /// Bytes that a sample takes in storage, on average; 0: it is not read from a file.
  virtual double stored_bytes() const { return 0; }
  virtual ReaderWork reader_work() const { return {.read_bytes = stored_bytes()}; }
  /// What would make a sample faster to read, according to the samples that were read so far: "--store decoded". For
  /// reports, as a list of alternatives.
  virtual std::vector<std::string> faster_reading() const { return {}; }
  /// The class of each sample, for drawing all classes equally often; -1: it has none. Empty: there are no classes.
  virtual std::vector<std::int32_t> classes() const { return {}; }
  /// Called after each batch. Throws data_changed if the files of the set have changed since they were opened.
  virtual void require_unchanged() const {}
};

/// The number of a sample: the bits of an unsigned number, as int32.
inline constexpr char kSampleIdField[] = "sample_id";
/// The fields of the set, and then kSampleIdField with the position in the set. Random draws per sample, such as the
/// dropout of adapters, depend on it. Everything else is unchanged.
std::shared_ptr<const Dataset> numbered(std::shared_ptr<const Dataset> set);

/// Mean bytes of a sample in a batch, all fields together, over up to 10,000 samples of the first epoch. Only packed
/// fields differ in size between samples.
double mean_sample_bytes(const Dataset& set);

}  // namespace lockstep::data
