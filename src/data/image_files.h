// JPEG and PNG files: as a data set of which each image is decoded and shaped when it is read, and as the source of an
// import.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/pool.h"
#include "data/archive.h"
#include "data/image_decoder.h"
#include "data/image_set.h"
#include "data/import.h"
#include "data/resize.h"
#include "data/shaped_decoder.h"

namespace lockstep::data {

/// The extension of the name of a file in lower case: ".jpg".
std::string lower_extension(const std::string& path);
/// Whether the name of a file ends in .jpg, .jpeg or .png, in upper or lower case.
bool has_image_name(const std::string& path);

// ---- A data set without labels -------------------------------------------------------------------------------------

struct ImageFilesOptions {
  int height = 0, width = 0, channels = 0;  // of each sample
  int resize = 0;  // length of the shorter side before the centre is taken, pixels (image_shape.h)
};

/// Sample i is the file paths[i], without a label. An image that already has the size is used as it is, unless `resize`
/// says otherwise (keeps_size()). Others are resized, which needs height and width to be equal.
class ImageFiles final : public ImageSet {
 public:
  ImageFiles(std::vector<std::string> paths, const ImageFilesOptions& options);

  const ImageSetInfo& info() const override { return info_; }
  void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                  std::int32_t& label) const override;
  /// Why a sample that was read has no image (its bytes are 0 then); empty: it has one.
  const std::string& problem(std::int64_t sample) const { return problems_[static_cast<std::size_t>(sample)]; }

 private:
  /// Returns what is wrong, or an empty string.
  std::string read(const std::string& path, std::span<std::uint8_t> image) const;

  struct Buffers {
    std::vector<std::uint8_t> bytes;
    ShapedDecoder decoder;
  };
  std::vector<std::string> paths_;
  mutable std::vector<std::string> problems_;
  int resize_;
  ImageSetInfo info_;
  mutable Pool<Buffers> pool_;
};

// ---- The files of an import -----------------------------------------------------------------------------------------

struct SourceFile {
  std::string path;  // as messages name it
  std::int32_t label = 0;
  int height = 0, width = 0;                // pixels
  int stored_height = 0, stored_width = 0;  // pixels, after resizing
  std::uint64_t n_bytes = 0;
  bool is_grey = false;
  ImageFormat format = ImageFormat::jpeg;
  std::string bad{};  // why it cannot be decoded
  // Where its bytes are, if they are a part of a file.
  std::shared_ptr<const std::string> archive{};
  ByteRange place{};
  std::int64_t row = -1;  // of tables, whose bytes are given (image_tables.h); -1: a file

  std::uint64_t stored_pixels() const { return std::uint64_t(stored_height) * std::uint64_t(stored_width); }
};

struct TableImages;

struct ImageSource {
  std::vector<std::string> classes;
  std::vector<SourceFile> files;
  std::vector<std::string> lists;  // other files that were read, such as class names and labels
  std::string description;
  int channels = 0;                       // 0: as in the images
  std::unique_ptr<Scratch> scratch{};     // with the files of archives that are compressed
  std::shared_ptr<TableImages> tables{};  // of which `files` are the rows
};

/// Images and labels in tar archives (import.h).
ImageSource list_webdataset(const ImageFolderOptions& options);

/// Reads and decodes files one after the other, and resizes the images if the import asks for it. To be used by one
/// thread. Its memory is reused for the next file.
class FileDecoder {
 public:
  /// Reads the bytes and the header of a file. Returns false if it is bad, with the reason in file.bad. The image will
  /// be resized so that its shorter side is `short_side` pixels, unless it is not longer; 0: never. `given`: the bytes
  /// of a row.
  bool open(SourceFile& file, int short_side, std::string_view given = {});
  /// (stored_height, stored_width, channels). If the image is bad, the reason is in file.bad.
  std::span<const std::uint8_t> decode(SourceFile& file, int channels);
  /// The bytes of the file.
  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  ImageDecoder decoder_;
  Resizer resizer_;
  std::vector<std::uint8_t> bytes_, pixels_, resized_;
};

}  // namespace lockstep::data
