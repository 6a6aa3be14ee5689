// The HDF5 file of an image set: writing it, and checking it before a sample of it is read. image_set.h documents the
// layout.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/image_set.h"
#include "data/user_block.h"
#include "hdf5/writer.h"

namespace lockstep::data {

inline constexpr char kImageFormat[] = "lockstep-images";
inline constexpr std::int64_t kImageFormatVersion = 1;    // decoded
inline constexpr std::int64_t kJpegFormatVersion = 2;     // JPEG images, 3 channels
inline constexpr std::int64_t kEncodedFormatVersion = 3;  // JPEG and PNG images, 1 or 3 channels
inline constexpr std::int64_t kPixelsFormatVersion = 4;   // decoded images of several sizes, 1 or 3 channels
inline constexpr char kPixels[] = "pixels";               // the attribute `formats` of that version
using hdf5::Placement;
/// 512 KiB is the stripe of BeeGFS: a chunk, and therefore each decoded image that is not larger, is in one stripe on
/// one storage target.
inline constexpr Placement kDefaultPlacement{.alignment_bytes = 512u << 10, .chunk_bytes = 512u << 10};
inline constexpr std::uint64_t kMaxChunkBytes = 1u << 30;

/// What a file of encoded images, or of decoded ones of several sizes, contains besides the images.
struct EncodedIndex {
  std::string formats;              // "jpeg", "png" or "jpeg, png"; or "pixels"
  bool is_decoded = false;          // formats is "pixels": (height, width, channels) bytes per image
  ByteRange offsets, sizes;         // /offsets, /sizes
  std::uint64_t largest_bytes = 0;  // of one image
  std::int64_t largest_pixels = 0;
  int min_height = 0, min_width = 0, max_height = 0, max_width = 0;
  bool operator==(const EncodedIndex&) const = default;
};

/// The result of open_image_file(): all sizes agree with each other, and everything is inside the file.
struct ImageFile {
  ImageSetInfo info;                    // height and width are 0 for encoded images of several sizes
  std::optional<EncodedIndex> encoded;  // empty: decoded images
  StoredBytes images;
  ByteRange labels;
  std::string source;                    // where the images were imported from; may be empty
  std::string images_xxh3, labels_xxh3;  // 16 hex digits; empty: the file has none
  bool has_user_block = false;           // import wrote the file, and its metadata was checked by digest
  bool operator==(const ImageFile&) const = default;
};

/// Throws an Error (data_*) that describes what is wrong. HDF5 opens the file only in a limited child process.
ImageFile open_image_file(const InputFile& file);
/// Reads the metadata, except for the index, through HDF5 in this process. `images`: their position, if it
/// is known. Without it, HDF5 looks up each chunk, which takes time proportional to the square of the number of chunks.
ImageFile read_metadata(const InputFile& file, const StoredBytes* images = nullptr);
/// The positions of the images in a file of ImageFileWriter. HDF5 looks up only a few of its chunks.
StoredBytes locate_in_a_row(const InputFile& file);

/// All labels. Each is checked against `classes`: throws data_damaged with the sample and the value.
std::vector<std::int32_t> read_labels(const InputFile& file, const ImageFile& layout);

/// The position of each image of the index in /images, and the end of the last one.
std::vector<std::uint64_t> read_offsets(const InputFile& file, const ImageFile& layout);
/// Height and width of each image of the index.
std::vector<std::array<std::int32_t, 2>> read_sizes(const InputFile& file, const ImageFile& layout);

/// Recomputes the checksums and checks every label.
Verification verify_image_file(const InputFile& file, const ImageFile& layout,
                               const std::function<void(std::uint64_t bytes)>& progress);

/// Writes an image set under a partial name; finish() renames the file. Equal content results in equal bytes.
class ImageFileWriter {
 public:
  /// For decoded images of one size. A chunk holds as many as fit into placement.chunk_bytes, but at least one.
  ImageFileWriter(const std::string& path, bool replace, std::int64_t n_samples, int height, int width, int channels,
                  const Placement& placement = kDefaultPlacement);
  /// For encoded images, or decoded images of several sizes, with `image_bytes` bytes in total. A chunk has
  /// placement.chunk_bytes bytes.
  ImageFileWriter(const std::string& path, bool replace, std::int64_t n_samples, std::uint64_t image_bytes,
                  const Placement& placement = kDefaultPlacement);
  ~ImageFileWriter();

  /// Adds the next samples: images (n, H, W, C) and n labels.
  void append(std::span<const std::uint8_t> images, std::span<const std::int32_t> labels);
  /// Adds the next sample.
  void append_encoded(std::span<const std::uint8_t> image, int height, int width, std::int32_t label);
  /// Adds the next sample: (height, width, channels) bytes. A file has either encoded or decoded images.
  void append_pixels(std::span<const std::uint8_t> image, int height, int width, std::int32_t label);
  /// To be called when n_samples were appended. Stores split, classes, mean, stddev and class_names of `info`.
  /// Encoded images are read with as many channels as mean has values. Decoded images must have that many.
  void finish(const ImageSetInfo& info, const std::string& source);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data
