// libjpeg reports errors by calling a function that must not return. Ours jumps back into the member function that
// called the library. That function has no object with a destructor between setjmp and the call, so only C frames are
// skipped.

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
// libjpeg's header needs the two headers above.
#include <jpeglib.h>

#include <vector>

#include "data/image_decoder.h"
#include "lockstep/error.h"

#define LOCKSTEP_TEXT(macro) LOCKSTEP_TEXT_OF(macro)
#define LOCKSTEP_TEXT_OF(text) #text

namespace lockstep::data {
namespace {

/// A progressive image of a few bytes can request an excessive number of scans over its coefficients.
constexpr int kMaxScans = 500;
/// Chroma of half resolution is interpolated between neighbours, so that a pixel depends on the block next to its own.
/// With this many additional pixels on each side, the pixels in between are the same as in the whole image.
constexpr int kMargin = 2;

}  // namespace

struct JpegDecoder::State {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX] = "";      // of the first warning, or of the error
  std::vector<std::uint8_t> spare_row;  // a CMYK row, or a row that is not needed
  int channels = 3;                     // of the decoded image
  PixelArea whole, area;                // the decoded image, and the part of it that is decoded
  RowsBelow rest = RowsBelow::parsed;

  static State& of(j_common_ptr jpeg) { return *static_cast<State*>(jpeg->client_data); }

  [[noreturn]] static void on_error(j_common_ptr jpeg) {
    State& s = of(jpeg);
    if (s.text[0] == '\0') jpeg->err->format_message(jpeg, s.text);
    std::longjmp(s.back, 1);
  }
  /// Level -1 is a warning: the data are corrupt, and the library would continue with a guess.
  static void on_message(j_common_ptr jpeg, int level) {
    if (level >= 0) return;
    jpeg->err->format_message(jpeg, of(jpeg).text);
    std::longjmp(of(jpeg).back, 1);
  }
  static void on_progress(j_common_ptr jpeg) {
    State& s = of(jpeg);
    if (s.jpeg.input_scan_number <= kMaxScans) return;
    std::snprintf(s.text, sizeof s.text, "more than %d scans", kMaxScans);
    std::longjmp(s.back, 1);
  }

  State() {
    jpeg.err = jpeg_std_error(&errors);
    errors.error_exit = on_error;
    errors.emit_message = on_message;
    progress.progress_monitor = on_progress;
    jpeg.client_data = this;
    if (setjmp(back) != 0) fail(ErrorCode::library, "libjpeg-turbo cannot be started: {}", text);
    jpeg_create_decompress(&jpeg);
    jpeg.client_data = this;
    jpeg.progress = &progress;
  }
  ~State() { jpeg_destroy_decompress(&jpeg); }

  bool read_header(const std::uint8_t* bytes, std::size_t n_bytes) {
    text[0] = '\0';
    if (setjmp(back) != 0) return false;
    jpeg_abort_decompress(&jpeg);
    jpeg_mem_src(&jpeg, bytes, static_cast<unsigned long>(n_bytes));
    jpeg_read_header(&jpeg, TRUE);
    return true;
  }

  bool start_decompress(int eighths, int n_channels) {
    if (setjmp(back) != 0) return false;
    channels = n_channels;
    jpeg.scale_num = static_cast<unsigned>(eighths);
    jpeg.scale_denom = 8;
    // The library converts between grey, RGB and YCbCr, but CMYK (and YCCK) only to CMYK.
    const bool cmyk = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
    jpeg.out_color_space = cmyk ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&jpeg);
    whole = area = {.width = static_cast<int>(jpeg.output_width), .height = static_cast<int>(jpeg.output_height)};
    rest = RowsBelow::parsed;
    return true;
  }

  /// libjpeg moves the left edge to the edge of a block.
  bool crop(const PixelArea& needed) {
    if (setjmp(back) != 0) return false;
    const int left = std::max(needed.left - kMargin, 0), top = std::max(needed.top - kMargin, 0);
    const int right = std::min(needed.left + needed.width + kMargin, whole.width);
    auto first = static_cast<JDIMENSION>(left), n = static_cast<JDIMENSION>(right - left);
    if (n < jpeg.output_width) jpeg_crop_scanline(&jpeg, &first, &n);
    if (top > 0) jpeg_skip_scanlines(&jpeg, static_cast<JDIMENSION>(top));
    area = {.left = static_cast<int>(first),
            .top = top,
            .width = static_cast<int>(n),
            .height = needed.top + needed.height - top};
    return true;
  }

  /// Adobe's programs, which write nearly all such images, store the four inks inverted and add their own marker.
  void convert_cmyk_row(std::uint8_t* row) const {
    const bool inverted = jpeg.saw_Adobe_marker != 0;
    const auto light = [inverted](unsigned ink) { return inverted ? ink : 255 - ink; };
    for (std::size_t x = 0; x < jpeg.output_width; ++x) {
      const std::uint8_t* inks = spare_row.data() + 4 * x;
      std::uint8_t rgb[3];
      for (std::size_t c = 0; c < 3; ++c)
        rgb[c] = static_cast<std::uint8_t>((light(inks[c]) * light(inks[3]) + 127) / 255);
      if (channels == 1)
        row[x] = static_cast<std::uint8_t>((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] + 500) / 1000);
      else
        std::copy_n(rgb, 3, row + 3 * x);
    }
  }

  std::size_t row_bytes() const { return static_cast<std::size_t>(channels) * static_cast<std::size_t>(area.width); }

  bool read_rows(std::uint8_t* pixels) {
    if (setjmp(back) != 0) return false;
    const auto end = static_cast<JDIMENSION>(area.top + area.height);
    while (jpeg.output_scanline < end) {
      std::uint8_t* row = pixels + (jpeg.output_scanline - static_cast<JDIMENSION>(area.top)) * row_bytes();
      std::uint8_t* target = jpeg.out_color_space == JCS_CMYK ? spare_row.data() : row;
      jpeg_read_scanlines(&jpeg, &target, 1);
      if (target != row) convert_cmyk_row(row);
    }
    if (rest == RowsBelow::ignored) {
      jpeg_abort_decompress(&jpeg);
      return true;
    }
    // The last row must be read, because skipping to the end would also end the input.
    if (end + 1 < jpeg.output_height) jpeg_skip_scanlines(&jpeg, jpeg.output_height - end - 1);
    std::uint8_t* last = spare_row.data();
    if (end < jpeg.output_height) jpeg_read_scanlines(&jpeg, &last, 1);
    jpeg_finish_decompress(&jpeg);
    return true;
  }
};

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}
JpegDecoder::~JpegDecoder() = default;

int JpegDecoder::decoded_width() const { return state_->whole.width; }
int JpegDecoder::decoded_height() const { return state_->whole.height; }
PixelArea JpegDecoder::decoded_area() const { return state_->area; }

bool JpegDecoder::open(std::span<const std::uint8_t> bytes) {
  State& s = *state_;
  if (bytes.empty()) return bad("it is empty (0 bytes)");
  if (bytes.size() > kMaxImageBytes)
    return bad(fmt::format("its {} bytes exceed the limit of {}", bytes.size(), kMaxImageBytes));
  if (!s.read_header(bytes.data(), bytes.size())) return bad(s.text);
  width_ = static_cast<int>(s.jpeg.image_width);
  height_ = static_cast<int>(s.jpeg.image_height);
  is_grey_ = s.jpeg.jpeg_color_space == JCS_GRAYSCALE;
  if (std::int64_t{width_} * height_ > kMaxImagePixels)
    return bad(fmt::format("its {} x {} pixels exceed the limit of {}", width_, height_, kMaxImagePixels));
  return true;
}

bool JpegDecoder::start(int eighths, int channels) {
  return state_->start_decompress(eighths, channels) || bad(state_->text);
}

bool JpegDecoder::crop(const PixelArea& needed, RowsBelow rest) {
  State& s = *state_;
  require(s.whole.contains(needed) && needed.width > 0 && needed.height > 0, ErrorCode::internal,
          "{} x {} pixels from ({}, {}) on are not a part of {} x {}", needed.width, needed.height, needed.left,
          needed.top, s.whole.width, s.whole.height);
  s.rest = rest;
  return s.crop(needed) || bad(s.text);
}

bool JpegDecoder::read_pixels(std::span<std::uint8_t> pixels) {
  State& s = *state_;
  require(pixels.size() == s.row_bytes() * static_cast<std::size_t>(s.area.height), ErrorCode::internal,
          "an image of {} x {} pixels does not fit into a buffer of {} bytes", s.area.width, s.area.height,
          pixels.size());
  s.spare_row.resize(std::size_t{4} * s.jpeg.output_width);
  return s.read_rows(pixels.data()) || bad(s.text);
}

std::string jpeg_version() { return LOCKSTEP_TEXT(LIBJPEG_TURBO_VERSION); }

}  // namespace lockstep::data
