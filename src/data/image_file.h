// The HDF5 file of an image set: how it is written, and what must hold before a sample of it is read.
// The layout is documented in image_set.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/hdf5_file.h"
#include "data/image_set.h"
#include "data/seal.h"

namespace lockstep::data {

inline constexpr char kImageFormat[] = "lockstep-images";
inline constexpr std::int64_t kImageFormatVersion = 1;  // decoded
inline constexpr std::int64_t kJpegFormatVersion = 2;
/// The stripe of BeeGFS: a chunk, and so each decoded image that is not larger, lies in one stripe, on one storage
/// target.
inline constexpr Placement kDefaultPlacement{.alignment_bytes = 512u << 10, .chunk_bytes = 512u << 10};
inline constexpr std::uint64_t kMaxChunkBytes = 1u << 30;

/// Of a file that holds JPEG bytes.
struct JpegIndex {
  ByteRange offsets, sizes;         // /offsets, /sizes
  std::uint64_t largest_bytes = 0;  // of an image
  std::int64_t largest_pixels = 0;
  int least_height = 0, least_width = 0, greatest_height = 0, greatest_width = 0;
};

/// What open_image_file() found out: all sizes agree with each other and lie inside the file.
struct ImageFile {
  ImageSetInfo info;              // of JPEG images of several sizes: height and width 0
  std::optional<JpegIndex> jpeg;  // nothing: decoded
  StoredBytes images;
  ByteRange labels;
  std::string source;                    // where the images came from; may be empty
  std::string images_xxh3, labels_xxh3;  // 16 hex digits; empty: the file carries none
  bool sealed = false;                   // written by import, its metadata checked by digest
};

/// Throws an Error with a sentence for whatever is not so (data_*). A sealed file is checked by its digest before
/// HDF5 opens it, a foreign one in a limited child process.
ImageFile open_image_file(const InputFile& file);
/// The same through HDF5 in this process, for a file that was just written by it. `images`: where they are known to
/// lie, so that HDF5 is not asked for each chunk, which takes it a time that grows with the square of their number.
ImageFile read_metadata(const InputFile& file, const StoredBytes* images = nullptr);
/// Where the images lie in a file of ImageFileWriter, of whose chunks HDF5 is asked for a few only.
StoredBytes locate_in_a_row(const InputFile& file);

/// Every label, each checked against `classes`: throws data_label naming the sample and the value.
std::vector<std::int32_t> read_labels(const InputFile& file, const ImageFile& layout);

/// Where each JPEG image begins in /images, and where the last ends.
std::vector<std::uint64_t> read_offsets(const InputFile& file, const ImageFile& layout);

/// Recomputes the checksums; one sentence for each thing that is damaged, none when all is well.
std::vector<std::string> verify_image_file(const InputFile& file, const ImageFile& layout,
                                           const std::function<void(std::uint64_t bytes)>& progress);

/// Writes an image set under a temporary name; the file gets its own name in finish(). Equal content gives equal bytes.
class ImageFileWriter {
 public:
  /// Decoded images of one size: a chunk holds as many as fit into placement.chunk_bytes, one at least.
  ImageFileWriter(const std::string& path, bool replace, std::int64_t n_samples, int height, int width, int channels,
                  const Placement& placement = kDefaultPlacement);
  /// JPEG images, of so many bytes together: a chunk has placement.chunk_bytes of them.
  ImageFileWriter(const std::string& path, bool replace, std::int64_t n_samples, std::uint64_t jpeg_bytes,
                  const Placement& placement = kDefaultPlacement);
  ~ImageFileWriter();

  /// The next samples; images (n, H, W, C), as many labels.
  void append(std::span<const std::uint8_t> images, std::span<const std::int32_t> labels);
  /// The next sample.
  void append_jpeg(std::span<const std::uint8_t> image, int height, int width, std::int32_t label);
  /// After n_samples were appended: split, classes, mean, stddev and class_names of `info` are stored.
  void finish(const ImageSetInfo& info, const std::string& source);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data
