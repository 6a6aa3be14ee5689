// safetensors: one file with named tensors; torchvision's names. Source: huggingface/safetensors, README "Format".
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "lockstep/dtype.h"
#include "lockstep/shape.h"

namespace lockstep::checkpoint {

struct NamedTensor {
  std::string name;  // "layer1.0.conv1.weight", "bn1.running_mean", "bn1.num_batches_tracked" (int64 on export)
  Shape shape;
  std::vector<float> values;
};

/// The shape with these dimensions, of which there are at most four.
Shape shape_of(std::span<const std::uint64_t> dims);

/// Writes the tensors in the order of the list. The file appears when it is complete. `dtype`: fp32, bf16 or fp16, to
/// which values are rounded to nearest, ties to even. Throws not_supported, with the name of the tensor, if a finite
/// value is too large for it.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata, DType dtype = DType::fp32);
/// Returns the tensors in the order of their data. F32, F64, F16, BF16 and I64 are read as fp32. Every size is checked
/// against the file.
std::vector<NamedTensor> read_safetensors(const std::string& path);

/// An open file. All sizes in it have been checked, and its tensors are read one by one.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name, dtype;  // "F32", "F64", "F16", "BF16" or "I64"
    Shape shape;
    std::uint64_t begin = 0, end = 0;  // range of bytes, from the beginning of the data
  };
  explicit SafetensorsFile(const std::string& path);

  /// In the order of their data.
  const std::vector<Entry>& entries() const { return entries_; }
  /// The texts of the header's __metadata__.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  NamedTensor read(const Entry& entry) const;

 private:
  std::string path_;
  Descriptor file_;
  std::uint64_t data_begin_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace lockstep::checkpoint
