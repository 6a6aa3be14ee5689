// safetensors: one file with named tensors; torchvision's names. Source: huggingface/safetensors, README "Format".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/named_tensor.h"
#include "lockstep/dtype.h"
#include "lockstep/shape.h"

namespace lockstep::checkpoint {

/// The shape with these dimensions, of which there are at most four.
Shape shape_of(std::span<const std::uint64_t> dims);

/// Writes the tensors in the order of the list. The file appears when it is complete. `dtype`: fp32, bf16 or fp16, to
/// which values are rounded to nearest, ties to even. Throws not_supported, with the name of the tensor, if a finite
/// value is too large for it. Values are read, rounded and written in pieces; after each, `wrote` is called with its
/// size.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata, DType dtype = DType::fp32,
                       const std::function<void(std::uint64_t size_bytes)>& wrote = {});
/// Returns the tensors in the order of their data; their values are read when they are needed. F32, F64, F16, BF16 and
/// I64 are read as fp32. Every size is checked against the file.
std::vector<NamedTensor> read_safetensors(const std::string& path);

/// An open file. All sizes in it have been checked, and values are read when they are needed.
class SafetensorsFile : public std::enable_shared_from_this<SafetensorsFile> {
 public:
  struct Entry {
    std::string name, dtype;  // "F32", "F64", "F16", "BF16" or "I64"
    Shape shape;
    std::uint64_t begin = 0, end = 0;  // range of bytes, from the beginning of the data
  };
  static std::shared_ptr<const SafetensorsFile> open(const std::string& path);

  /// In the order of their data.
  const std::vector<Entry>& entries() const { return entries_; }
  /// The texts of the header's __metadata__.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The tensor, which keeps the file open.
  NamedTensor tensor(const Entry& entry) const;
  /// All of them.
  std::vector<NamedTensor> tensors() const;

 private:
  explicit SafetensorsFile(const std::string& path);
  void read(const Entry& entry, std::size_t first, std::span<float> out) const;

  std::string path_;
  Descriptor file_;
  std::uint64_t data_begin_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace lockstep::checkpoint
