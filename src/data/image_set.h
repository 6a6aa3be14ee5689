// Data sets of labelled images: in one HDF5 file, or synthetic. Metadata is read through HDF5, samples by pread at the
// offsets that HDF5 reports.
//
// File layout (readable with plain h5py; documented in docs/data.md):
//   /images  (n, H, W, C) uint8     /labels (n) int32       (format 1: decoded)
//   /images  (bytes) uint8: JPEG or PNG images one after another, the i-th from byte offsets[i] to offsets[i + 1]
//   /offsets (n + 1) uint64   /sizes (n, 2) int32: height, width   /labels as above
//     (format 2: JPEG, 3 channels; format 3: both, with attributes channels=1 or 3, and formats; format 4: as format 3,
//     with formats="pixels": the images are decoded, (height, width, channels) each)
//   /images contiguous or in chunks of whole images (encoded: of bytes), never compressed; the others contiguous
//   attributes of the root: format="lockstep-images", format_version, split, classes, mean (C), std (C) (of values in
//   [0, 1]), class_names (variable-length strings), source, images_xxh3, labels_xxh3 (16 hex digits)
//   The file begins with a 4 KiB user block (user_block.h); files of other programs need none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_shape.h"

namespace lockstep::data {

struct ImageSetInfo : DatasetInfo {
  std::string split;
  std::int64_t first_sample = 0;            // position in the file of sample 0 (data.start)
  int height = 0, width = 0, channels = 0;  // pixels
  int classes = 0;
  std::vector<float> mean, stddev;  // (C), of values in [0, 1]
  std::vector<std::string> class_names;

  std::size_t image_bytes() const { return static_cast<std::size_t>(height) * width * channels; }
  bool operator==(const ImageSetInfo&) const = default;
};
/// "32 x 32 x 3", "several sizes"
std::string shape_text(const ImageSetInfo& info);
/// "200 per class", "17 to 21 per class"
std::string per_class_text(const std::vector<std::int64_t>& samples_per_class);

inline constexpr char kImageField[] = "image";  // (H, W, C) uint8
inline constexpr char kLabelField[] = "label";  // int32; -1: the sample has no label and is not counted

// Only in a set whose images are resized by the op image_input. Its images are packed.
inline constexpr char kRegionField[] = "region";  // an ImageRegion
inline constexpr char kPlaceField[] = "place";    // where its pixels begin (Packing::place)

class ImageSet : public Dataset {
 public:
  const ImageSetInfo& info() const override = 0;
  std::string sample_word() const final { return "images"; }
  /// Image, label and sample id (its position in the file), in this order, then region and place if there are regions.
  std::vector<Field> fields() const override;
  void read(std::int64_t sample, std::uint32_t epoch, std::span<const std::span<std::byte>> targets) const override;
  /// As read(), without the sample id.
  virtual void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                          std::int32_t& label) const = 0;
};

/// A set whose images are made of those of another one: everything else is the same.
class DerivedImageSet : public ImageSet {
 public:
  explicit DerivedImageSet(std::unique_ptr<ImageSet> set) : set_(std::move(set)), info_(set_->info()) {}
  const ImageSetInfo& info() const final { return info_; }
  std::vector<std::int32_t> classes() const final { return set_->classes(); }
  void require_unchanged() const final { set_->require_unchanged(); }
  double stored_bytes() const final { return set_->stored_bytes(); }
  std::vector<std::string> faster_reading() const override { return set_->faster_reading(); }

 protected:
  std::unique_ptr<ImageSet> set_;
  ImageSetInfo info_;
};

/// Opens and checks a file: every size against the file's length, every label against `classes`. [start, end) is a
/// range of its samples; end 0: up to the last. Sample 0 of the set is sample `start` of the file. For decoded images
/// of several sizes (format 4), read() returns regions that the op image_input resizes, and read_image()
/// returns the same images already resized.
std::unique_ptr<ImageSet> open_image_set(const std::string& path, std::int64_t start = 0, std::int64_t end = 0,
                                         const ImageShaping& shaping = {});

/// `set` with its images resized; `set` itself if that changes nothing.
std::unique_ptr<ImageSet> shape_image_set(std::unique_ptr<ImageSet> set, const ImageShaping& shaping);

/// Images and labels made from Philox(seed, synthetic, sample), without a file. Each class has a pattern of its own
/// under noise, so that a network can learn it. Sample 0 of the set is number `first_sample` of all.
std::unique_ptr<ImageSet> make_synthetic_set(std::uint32_t seed, std::int64_t n_samples, int height, int width,
                                             int channels, int classes, const std::string& split,
                                             std::int64_t first_sample = 0);

}  // namespace lockstep::data
