// Decodes JPEG bytes, which are not trusted, by libjpeg-turbo: sizes are bounded before memory is taken, and what the
// library only warns of (cut short, corrupt) counts as damage. The only file with its header is jpeg.cpp.
// Orientation tags are not looked at, as torchvision's ImageFolder does not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep::data {

/// Most pixels of an image: with the coefficients of a progressive one, 9 bytes each are held while it is decoded.
inline constexpr std::int64_t kMaxJpegPixels = std::int64_t{1} << 26;
inline constexpr std::uint64_t kMaxJpegBytes = std::uint64_t{1} << 28;

/// One image after another, by one thread; what the decoder holds is used again.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Each gives false where the image is bad; reason() then says why, in a few words.

  /// Reads the header. `bytes` must stay until read_pixels() is done.
  bool open(std::span<const std::uint8_t> bytes);
  int width() const;  // pixels, as stored
  int height() const;
  /// Chooses the size to decode to: the stored one times `eighths` / 8 (1, 2, 4 or 8), rounded up.
  bool start(int eighths);
  int decoded_width() const;
  int decoded_height() const;
  /// RGB, row-major: decoded_height() x decoded_width() x 3 bytes. One channel is written three times; CMYK becomes
  /// RGB.
  bool read_pixels(std::span<std::uint8_t> rgb);

  const std::string& reason() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string jpeg_version();  // of libjpeg-turbo, "2.1.5"

}  // namespace lockstep::data
