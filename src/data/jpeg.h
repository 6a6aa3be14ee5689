// Decodes JPEG bytes, which are not trusted, with libjpeg-turbo. Sizes are checked before memory is allocated, and
// everything that the library warns about (truncated, corrupt) counts as damage. Only jpeg.cpp includes its header.
// Orientation tags are ignored, as in torchvision's ImageFolder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep::data {

/// Maximum number of pixels of an image. While a progressive image is decoded, each pixel needs 9 bytes.
inline constexpr std::int64_t kMaxJpegPixels = std::int64_t{1} << 26;
inline constexpr std::uint64_t kMaxJpegBytes = std::uint64_t{1} << 28;

/// Decodes one image after the other, in one thread. Its memory is reused.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Each function returns false if the image is bad; reason() then describes why, in a few words.

  /// Reads the header. `bytes` must stay until read_pixels() is done.
  bool open(std::span<const std::uint8_t> bytes);
  int width() const;  // pixels, as stored
  int height() const;
  /// Chooses the size of the decoded image: the stored size times `eighths` / 8 (1, 2, 4 or 8), rounded up.
  bool start(int eighths);
  int decoded_width() const;
  int decoded_height() const;
  /// RGB, row-major: decoded_height() x decoded_width() x 3 bytes. A single channel is written three times; CMYK is
  /// converted to RGB.
  bool read_pixels(std::span<std::uint8_t> rgb);

  const std::string& reason() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string jpeg_version();  // of libjpeg-turbo, "2.1.5"

}  // namespace lockstep::data
