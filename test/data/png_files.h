// PNG images that tests create.
#pragma once

#include <png.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::data {

struct PngOptions {
  int type = PNG_COLOR_TYPE_RGB;
  int bits = 8;  // per channel, or per palette index
  bool interlaced = false;
  bool transparent = false;  // with a transparent colour (tRNS)
  std::string text = {};     // in a tEXt chunk
};

inline int png_channels(int type) {
  return type == PNG_COLOR_TYPE_RGB          ? 3
         : type == PNG_COLOR_TYPE_RGB_ALPHA  ? 4
         : type == PNG_COLOR_TYPE_GRAY_ALPHA ? 2
                                             : 1;
}

/// Entry i of the palette of encode_png().
inline png_color palette_color(int i) {
  return {static_cast<png_byte>(i * 37), static_cast<png_byte>(255 - i * 11), static_cast<png_byte>(i * 5 + 3)};
}

/// An image whose channel c at (y, x) is value(y, x, c), below 2^bits. If `value` is empty, only the header is written.
inline std::string encode_png(int height, int width, const PngOptions& options,
                              const std::function<int(int y, int x, int c)>& value) {
  std::string out;
  const auto on_error = [](png_structp, png_const_charp message) { throw std::runtime_error(message); };
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, on_error, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_write_fn(
      png, &out,
      [](png_structp p, png_bytep bytes, std::size_t n) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<const char*>(bytes), n);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), options.bits, options.type,
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (options.type == PNG_COLOR_TYPE_PALETTE) {
    std::vector<png_color> palette;
    for (int i = 0; i < 1 << options.bits; ++i) palette.push_back(palette_color(i));
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  }
  if (options.transparent) {
    png_byte alpha[2] = {0, 128};
    png_color_16 color{1, 2, 3, 4, 1};
    png_set_tRNS(png, info, alpha, 2, &color);
  }
  std::string text = options.text;
  png_text chunk{};
  chunk.compression = PNG_TEXT_COMPRESSION_NONE;
  chunk.key = const_cast<char*>("Comment");
  chunk.text = text.data();
  if (!text.empty()) png_set_text(png, info, &chunk, 1);
  png_write_info(png, info);
  if (value) {
    const int channels = png_channels(options.type);
    std::vector<std::vector<png_byte>> rows(static_cast<std::size_t>(height));
    std::vector<png_bytep> pointers;
    for (int y = 0; y < height; ++y) {
      std::vector<png_byte>& row = rows[static_cast<std::size_t>(y)];
      row.resize(png_get_rowbytes(png, info));
      for (int i = 0; i < width * channels; ++i) {
        const int v = value(y, i / channels, i % channels), bit = i * options.bits;
        if (options.bits == 16) row[static_cast<std::size_t>(bit / 8 + 1)] = static_cast<png_byte>(v);
        row[static_cast<std::size_t>(bit / 8)] |=
            static_cast<png_byte>(options.bits == 16 ? v >> 8 : v << (8 - options.bits - bit % 8));
      }
      pointers.push_back(row.data());
    }
    png_write_image(png, pointers.data());
    png_write_end(png, info);
  }
  png_destroy_write_struct(&png, &info);
  return out;
}

/// Grey or RGB, 8 bits. The values differ between images and positions.
inline int png_value(int y, int x, int c, int seed) { return (seed * 53 + y * 7 + x * 13 + c * 90) % 256; }
inline std::string small_png(int height, int width, int seed, int channels = 3) {
  return encode_png(height, width, {.type = channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB},
                    [=](int y, int x, int c) { return png_value(y, x, c, seed); });
}

/// CRC-32 as in PNG, bit by bit.
inline std::uint32_t png_crc(const std::uint8_t* bytes, std::size_t n) {
  std::uint32_t crc = 0xffffffff;
  for (std::size_t i = 0; i < n; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320 & (0u - (crc & 1)));
  }
  return ~crc;
}

/// Corrects the checksums of all chunks that are complete.
inline void correct_checksums(std::vector<std::uint8_t>& png) {
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const auto byte = [&](std::size_t i) { return std::size_t{png[at + i]}; };
    const std::size_t n = byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3);
    if (n > png.size() - at - 12) return;
    const std::uint32_t crc = png_crc(png.data() + at + 4, n + 4);
    for (std::size_t i = 0; i < 4; ++i) png[at + 8 + n + i] = static_cast<std::uint8_t>(crc >> (24 - 8 * i));
    at += n + 12;
  }
}

}  // namespace lockstep::data
