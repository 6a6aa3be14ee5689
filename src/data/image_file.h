// The HDF5 file of an image set: how it is written, and what must hold before a sample of it is read.
// The layout stands in dataset.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/seal.h"

namespace lockstep::data {

inline constexpr std::int64_t kImageFormatVersion = 1;

/// What open_image_file() found out: all sizes agree with each other and lie inside the file.
struct ImageFile {
  ImageSetInfo info;
  ByteRange images, labels;
  std::string source;                    // where the images came from; may be empty
  std::string images_xxh3, labels_xxh3;  // 16 hex digits; empty: the file carries none
  bool sealed = false;                   // written by import, its metadata checked by digest
};

/// Throws an Error with a sentence for whatever is not so (data_*). A sealed file is checked by its digest before
/// HDF5 opens it, a foreign one in a limited child process.
ImageFile open_image_file(const InputFile& file);

/// Every label, each checked against `classes`: throws data_label naming the sample and the value.
std::vector<std::int32_t> read_labels(const InputFile& file, const ImageFile& layout);

/// Recomputes the checksums; one sentence for each thing that is damaged, none when all is well.
std::vector<std::string> verify_image_file(const InputFile& file, const ImageFile& layout,
                                           const std::function<void(std::uint64_t bytes)>& progress);

/// Writes an image set under a temporary name; the file gets its own name in finish(). Equal content gives equal bytes.
class ImageFileWriter {
 public:
  ImageFileWriter(const std::string& path, bool replace, std::int64_t n_samples, int height, int width, int channels);
  ~ImageFileWriter();

  /// The next samples; images (n, H, W, C), as many labels.
  void append(std::span<const std::uint8_t> images, std::span<const std::int32_t> labels);
  /// After n_samples were appended: split, classes, mean, stddev and class_names of `info` are stored.
  void finish(const ImageSetInfo& info, const std::string& source);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data
