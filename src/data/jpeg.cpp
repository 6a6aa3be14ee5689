// libjpeg reports errors by calling a function that must not return. Ours jumps back into the member function that
// called the library. That function has no object with a destructor between setjmp and the call, so only C frames are
// skipped.
#include "data/jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
// libjpeg's header needs the two above.
#include <jpeglib.h>

#include <vector>

#include "data/image_limits.h"
#include "lockstep/error.h"

#define LOCKSTEP_TEXT(macro) LOCKSTEP_TEXT_OF(macro)
#define LOCKSTEP_TEXT_OF(text) #text

namespace lockstep::data {
namespace {

/// A progressive image of a few bytes can request an excessive number of scans over its coefficients.
constexpr int kMaxScans = 500;

}  // namespace

struct JpegDecoder::State {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX] = "";  // of the first warning, or of the error
  std::string reason;
  std::vector<std::uint8_t> cmyk_row;
  int channels = 3;  // of the decoded image

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

  bool bad(std::string why) {
    reason = std::move(why);
    return false;
  }

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
    // The library converts grey, RGB and YCbCr to each other, but CMYK (and YCCK) only to CMYK.
    const bool cmyk = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
    jpeg.out_color_space = cmyk ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&jpeg);
    return true;
  }

  /// Adobe's programs, which write nearly all such images, store the four inks inverted and add a marker of theirs.
  void convert_cmyk_row(std::uint8_t* row) const {
    const bool inverted = jpeg.saw_Adobe_marker != 0;
    const auto light = [inverted](unsigned ink) { return inverted ? ink : 255 - ink; };
    for (std::size_t x = 0; x < jpeg.output_width; ++x) {
      const std::uint8_t* inks = cmyk_row.data() + 4 * x;
      std::uint8_t rgb[3];
      for (std::size_t c = 0; c < 3; ++c)
        rgb[c] = static_cast<std::uint8_t>((light(inks[c]) * light(inks[3]) + 127) / 255);
      if (channels == 1)
        row[x] = static_cast<std::uint8_t>((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] + 500) / 1000);
      else
        std::copy_n(rgb, 3, row + 3 * x);
    }
  }

  std::size_t row_bytes() const { return static_cast<std::size_t>(channels) * jpeg.output_width; }

  bool read_rows(std::uint8_t* pixels) {
    if (setjmp(back) != 0) return false;
    while (jpeg.output_scanline < jpeg.output_height) {
      std::uint8_t* row = pixels + jpeg.output_scanline * row_bytes();
      std::uint8_t* target = jpeg.out_color_space == JCS_CMYK ? cmyk_row.data() : row;
      jpeg_read_scanlines(&jpeg, &target, 1);
      if (target != row) convert_cmyk_row(row);
    }
    jpeg_finish_decompress(&jpeg);
    return true;
  }
};

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}
JpegDecoder::~JpegDecoder() = default;

int JpegDecoder::width() const { return static_cast<int>(state_->jpeg.image_width); }
int JpegDecoder::height() const { return static_cast<int>(state_->jpeg.image_height); }
int JpegDecoder::decoded_width() const { return static_cast<int>(state_->jpeg.output_width); }
int JpegDecoder::decoded_height() const { return static_cast<int>(state_->jpeg.output_height); }
bool JpegDecoder::is_grey() const { return state_->jpeg.jpeg_color_space == JCS_GRAYSCALE; }
const std::string& JpegDecoder::reason() const { return state_->reason; }

bool JpegDecoder::open(std::span<const std::uint8_t> bytes) {
  State& s = *state_;
  if (bytes.empty()) return s.bad("it is empty (0 bytes)");
  if (bytes.size() > kMaxImageBytes)
    return s.bad(fmt::format("its {} bytes exceed the limit of {}", bytes.size(), kMaxImageBytes));
  if (!s.read_header(bytes.data(), bytes.size())) return s.bad(s.text);
  if (std::int64_t{width()} * height() > kMaxImagePixels)
    return s.bad(fmt::format("its {} x {} pixels exceed the limit of {}", width(), height(), kMaxImagePixels));
  return true;
}

bool JpegDecoder::start(int eighths, int channels) {
  return state_->start_decompress(eighths, channels) || state_->bad(state_->text);
}

bool JpegDecoder::read_pixels(std::span<std::uint8_t> pixels) {
  State& s = *state_;
  require(pixels.size() == s.row_bytes() * s.jpeg.output_height, ErrorCode::internal,
          "an image of {} x {} pixels does not fit into a buffer of {} bytes", decoded_width(), decoded_height(),
          pixels.size());
  if (s.jpeg.out_color_space == JCS_CMYK) s.cmyk_row.resize(std::size_t{4} * s.jpeg.output_width);
  return s.read_rows(pixels.data()) || s.bad(s.text);
}

std::string jpeg_version() { return LOCKSTEP_TEXT(LIBJPEG_TURBO_VERSION); }

}  // namespace lockstep::data
