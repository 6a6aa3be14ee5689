// Decodes PNG bytes, which are not trusted, with libpng. Sizes are checked before memory is allocated, every checksum
// is verified, and a missing end counts as damage. Only png.cpp includes libpng's header.
//
// All kinds of PNG become 8 bits per channel, as Pillow's convert("L") and convert("RGB") do it: palettes and fewer
// bits are expanded, interlaced images are assembled, alpha and transparent colours are dropped. Images of 16 bits are
// scaled (v / 257, rounded). Gamma and colour profiles are ignored. For an animation, the default image is taken.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep::data {

/// Whether the bytes begin with the signature of PNG.
bool is_png(std::span<const std::uint8_t> bytes);

/// Decodes one image after the other, in one thread.
class PngDecoder {
 public:
  PngDecoder();
  ~PngDecoder();
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  // Each function returns false if the image is bad; reason() then describes why, in a few words.

  /// Reads the header. `bytes` must stay valid until read_pixels() is done.
  bool open(std::span<const std::uint8_t> bytes);
  int width() const;  // pixels
  int height() const;
  bool is_grey() const;  // one channel, besides alpha
  /// height() x width() x channels bytes, row-major; channels: 1 (grey, by the weights of ITU-R 601-2 for colours) or 3
  /// (RGB). To be called once after open().
  bool read_pixels(int channels, std::span<std::uint8_t> pixels);

  const std::string& reason() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string png_version();  // of libpng, "1.6.39"

}  // namespace lockstep::data
