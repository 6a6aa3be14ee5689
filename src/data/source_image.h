// Reads and decodes the files of an image import one after the other, and resizes the images if the import asks for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/image_decoder.h"
#include "data/resize.h"

namespace lockstep::data {

struct SourceFile {
  std::string path;
  std::int32_t label = 0;
  int height = 0, width = 0;                // pixels
  int stored_height = 0, stored_width = 0;  // pixels, after resizing
  std::uint64_t n_bytes = 0;
  bool is_grey = false;
  ImageFormat format = ImageFormat::jpeg;
  std::string bad{};  // why it cannot be decoded

  std::uint64_t stored_pixels() const { return std::uint64_t(stored_height) * std::uint64_t(stored_width); }
};

/// To be used by one thread. Its memory is reused for the next file.
class FileDecoder {
 public:
  /// Images are resized so that their shorter side is `short_side` pixels, unless it is not longer; 0: never.
  explicit FileDecoder(int short_side) : short_side_(short_side) {}

  /// Reads the bytes and the header of a file. Returns false if it is bad, with the reason in file.bad.
  bool open(SourceFile& file);
  /// (stored_height, stored_width, channels). If the image is bad, the reason is in file.bad.
  std::span<const std::uint8_t> decode(SourceFile& file, int channels);
  /// The bytes of the file.
  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  int short_side_;
  ImageDecoder decoder_;
  Resizer resizer_;
  std::vector<std::uint8_t> bytes_, pixels_, resized_;
};

}  // namespace lockstep::data
