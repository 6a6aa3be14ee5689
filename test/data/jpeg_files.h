// JPEG images that tests create.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
// libjpeg's header needs <cstdio>.
#include <jpeglib.h>

namespace lockstep::data {

struct JpegOptions {
  int channels = 3;  // 1: grey, 3: RGB, 4: CMYK, stored inverted, as by Adobe's programs
  int quality = 95;
  bool progressive = false;
  int colour_columns = 2, colour_rows = 2;  // pixels that share one colour value: 2 x 2 is "4:2:0"
  int restart_rows = 0;                     // rows of blocks between restart markers; 0: none
};

/// A smooth image, which JPEG reproduces closely: value of channel c at (y, x) of sample `seed`.
inline std::uint8_t smooth_value(int y, int x, int c, int seed) {
  return static_cast<std::uint8_t>(40 + (seed * 37 + c * 50) % 100 + (y * (1 + c) + x * 2) % 100);
}

/// Pixels (height, width, channels) as a JPEG file.
inline std::string encode_jpeg(const std::vector<std::uint8_t>& pixels, int height, int width,
                               const JpegOptions& options = {}) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long n_bytes = 0;
  jpeg_mem_dest(&jpeg, &bytes, &n_bytes);
  jpeg.image_height = static_cast<unsigned>(height);
  jpeg.image_width = static_cast<unsigned>(width);
  jpeg.input_components = options.channels;
  jpeg.in_color_space = options.channels == 1 ? JCS_GRAYSCALE : options.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, options.quality, TRUE);
  if (options.progressive) jpeg_simple_progression(&jpeg);
  if (options.channels == 3) {
    jpeg.comp_info[0].h_samp_factor = options.colour_columns;
    jpeg.comp_info[0].v_samp_factor = options.colour_rows;
  }
  jpeg.restart_in_rows = options.restart_rows;
  jpeg_start_compress(&jpeg, TRUE);
  for (int y = 0; y < height; ++y) {
    JSAMPROW row = const_cast<JSAMPROW>(pixels.data()) + static_cast<std::ptrdiff_t>(y) * width * options.channels;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string out(reinterpret_cast<const char*>(bytes), n_bytes);
  std::free(bytes);
  return out;
}

inline std::vector<std::uint8_t> smooth_pixels(int height, int width, int channels, int seed) {
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) pixels.push_back(smooth_value(y, x, c, seed));
  return pixels;
}

inline std::string smooth_jpeg(int height, int width, int seed = 0, const JpegOptions& options = {}) {
  return encode_jpeg(smooth_pixels(height, width, options.channels, seed), height, width, options);
}

/// The same file with another size in its header.
inline std::string with_size(std::string jpeg, int height, int width) {
  for (std::size_t i = 2; i + 9 < jpeg.size();) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(jpeg[at]); };
    if (byte(i + 1) >= 0xc0 && byte(i + 1) <= 0xc2) {
      jpeg[i + 5] = static_cast<char>(height >> 8), jpeg[i + 6] = static_cast<char>(height);
      jpeg[i + 7] = static_cast<char>(width >> 8), jpeg[i + 8] = static_cast<char>(width);
      return jpeg;
    }
    i += 2 + (std::size_t{byte(i + 2)} << 8) + byte(i + 3);
  }
  std::abort();
}

}  // namespace lockstep::data
