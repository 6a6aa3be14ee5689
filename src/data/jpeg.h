// Decodes JPEG bytes, which are not trusted, with libjpeg-turbo. Sizes are checked before memory is allocated, and
// every warning of the library (truncated, corrupt) counts as damage. Only jpeg.cpp includes its header. Orientation
// tags are ignored, as in torchvision's ImageFolder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/pixel_area.h"

namespace lockstep::data {

/// What happens to the rows below those that are needed.
enum class RowsBelow : std::uint8_t { ignored, parsed };

/// Decodes one image after the other, in one thread. Its memory is reused.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Each function returns false if the image is bad; reason() then describes why, in a few words.

  /// Reads the header. `bytes` must stay valid until read_pixels() is done.
  bool open(std::span<const std::uint8_t> bytes);
  int width() const;  // pixels, as stored
  int height() const;
  bool is_grey() const;  // one channel
  /// Chooses the size of the decoded image, the stored size times `eighths` / 8 (1, 2, 4 or 8), rounded up, and its
  /// channels: 3 (RGB) or 1 (grey).
  bool start(int eighths, int channels = 3);
  int decoded_width() const;
  int decoded_height() const;
  /// Decodes only an area of the decoded image that contains `needed`. Its pixels in `needed` are those of the whole
  /// image, bit by bit. The rows above are parsed, but neither transformed nor converted, and so are the blocks on the
  /// left and right. The rows below are only parsed if `rest` says so, to find damage there. To be called after
  /// start().
  bool crop(const PixelArea& needed, RowsBelow rest);
  /// What read_pixels() decodes: the whole image, or what crop() chose.
  PixelArea decoded_area() const;
  /// Row-major: the pixels of decoded_area(), of `channels` bytes. Grey images become RGB with three equal channels;
  /// the grey of a colour image is its brightness (Y of JPEG). CMYK is converted to RGB.
  bool read_pixels(std::span<std::uint8_t> pixels);

  const std::string& reason() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string jpeg_version();  // of libjpeg-turbo, "2.1.5"

}  // namespace lockstep::data
