// libpng reports errors by calling a function that must not return. As in jpeg.cpp, ours jumps back into the member
// function that called the library, which has no object with a destructor between setjmp and the call.

#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "data/image_decoder.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::array<std::uint8_t, 8> kSignature = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

// The weights of red and green in grey, in units of 1/100000 (ITU-R 601-2, as in Pillow). Blue has the rest.
constexpr png_fixed_point kRed = 29900, kGreen = 58700;

}  // namespace

bool is_png(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= kSignature.size() && std::equal(kSignature.begin(), kSignature.end(), bytes.begin());
}

struct PngDecoder::State {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf back;
  char text[200] = "";                 // of the error
  std::span<const std::uint8_t> rest;  // bytes that were not read yet
  std::vector<png_bytep> rows;

  [[noreturn]] static void on_error(png_structp png, png_const_charp message) {
    State& s = *static_cast<State*>(png_get_error_ptr(png));
    std::snprintf(s.text, sizeof s.text, "%s", message);
    std::longjmp(s.back, 1);
  }
  /// Warnings concern chunks that are ignored anyway.
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep target, std::size_t n_bytes) {
    State& s = *static_cast<State*>(png_get_io_ptr(png));
    if (n_bytes > s.rest.size()) png_error(png, "Premature end of PNG file");
    std::memcpy(target, s.rest.data(), n_bytes);
    s.rest = s.rest.subspan(n_bytes);
  }

  ~State() { close(); }
  void close() { png_destroy_read_struct(&png, &info, nullptr); }

  bool read_header() {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    info = png == nullptr ? nullptr : png_create_info_struct(png);
    if (info == nullptr) fail(ErrorCode::library, "libpng cannot be started");
    if (setjmp(back) != 0) return false;
    png_set_read_fn(png, this, on_read);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    // Only IHDR, PLTE, tRNS, IDAT and IEND are parsed: the others do not change the pixels.
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // open() checks the size
    png_read_info(png, info);
    return true;
  }

  bool read_image(int channels, std::size_t row_bytes) {
    if (setjmp(back) != 0) return false;
    const png_byte type = png_get_color_type(png, info);
    png_set_strip_16(png);  // the high byte, as in Pillow
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
    png_set_strip_alpha(png);
    if (channels == 3)
      png_set_gray_to_rgb(png);
    else if ((type & PNG_COLOR_MASK_COLOR) != 0)
      png_set_rgb_to_gray_fixed(png, PNG_ERROR_ACTION_NONE, kRed, kGreen);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != row_bytes) png_error(png, "its rows have an unexpected length");
    png_read_image(png, rows.data());
    png_read_end(png, nullptr);
    return true;
  }
};

PngDecoder::PngDecoder() : state_(std::make_unique<State>()) {}
PngDecoder::~PngDecoder() = default;

bool PngDecoder::open(std::span<const std::uint8_t> bytes) {
  State& s = *state_;
  s.close();
  s.rest = bytes;
  if (!s.read_header()) return bad(s.text);
  width_ = static_cast<int>(png_get_image_width(s.png, s.info));
  height_ = static_cast<int>(png_get_image_height(s.png, s.info));
  is_grey_ = (png_get_color_type(s.png, s.info) & PNG_COLOR_MASK_COLOR) == 0;
  const std::int64_t n_pixels = std::int64_t{width_} * height_;
  if (n_pixels > kMaxImagePixels || std::max(width(), height()) > kMaxImageSide)
    return bad(fmt::format("its {} x {} pixels exceed the limit of {}, or of {} per side", width(), height(),
                           kMaxImagePixels, kMaxImageSide));
  return true;
}

bool PngDecoder::read_pixels(int channels, std::span<std::uint8_t> pixels) {
  State& s = *state_;
  const auto n_rows = static_cast<std::size_t>(height());
  const std::size_t row_bytes = static_cast<std::size_t>(width()) * static_cast<std::size_t>(channels);
  require((channels == 1 || channels == 3) && pixels.size() == n_rows * row_bytes, ErrorCode::internal,
          "an image of {} x {} pixels does not fit into a buffer of {} bytes", width(), height(), pixels.size());
  s.rows.resize(n_rows);
  for (std::size_t y = 0; y < n_rows; ++y) s.rows[y] = pixels.data() + y * row_bytes;
  return s.read_image(channels, row_bytes) || bad(s.text);
}

std::string png_version() { return PNG_LIBPNG_VER_STRING; }

}  // namespace lockstep::data
