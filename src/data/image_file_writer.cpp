// Writing an image set: HDF5 writes the file under a partial name, then the user block is added and the file is
// published.
#include <algorithm>

#include "base/printable.h"
#include "base/utf8.h"
#include "data/file.h"
#include "data/image_decoder.h"
#include "data/image_file.h"
#include "hdf5/writer.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// The placement for a file with `all_bytes` bytes of images. It has no chunks if all images fit into one, and no
/// alignment if they are smaller than the alignment, which would only make the file longer. A chunk holds whole units.
Placement placement_of(const Placement& requested, std::uint64_t unit_bytes, std::uint64_t all_bytes) {
  Placement out = requested;
  if (out.chunk_bytes > 0)
    out.chunk_bytes = std::max(requested.chunk_bytes / unit_bytes, std::uint64_t{1}) * unit_bytes;
  if (out.chunk_bytes >= all_bytes || out.chunk_bytes > kMaxChunkBytes) out.chunk_bytes = 0;
  if (all_bytes < out.alignment_bytes) out.alignment_bytes = 0;
  return out;
}

/// Reads back what was written in chunks, because the positions of most chunks are computed instead of reported by
/// HDF5.
void check_chunks(const InputFile& file, const StoredBytes& images, std::uint64_t images_hash) {
  const bool inside = std::ranges::all_of(images.offsets, [&](std::uint64_t offset) {
    return offset <= file.size_bytes() && images.chunk_bytes <= file.size_bytes() - offset;
  });
  require(inside && hash_stored(file, images, "its images") == images_hash, ErrorCode::library,
          "{}: this version of HDF5 puts chunks at unexpected places; --chunk 0 avoids chunks", file.path());
}

}  // namespace

struct ImageFileWriter::State {
  PendingFile pending;
  std::string path;
  Placement placement;
  hdf5::Writer hdf5;
  std::uint64_t n_samples = 0, n_written = 0;
  std::uint64_t image_bytes = 0;  // of one decoded image
  std::size_t channels = 0;       // of decoded images
  StreamingHash images_hash, labels_hash;

  // For encoded images, and for decoded images of several sizes. Offsets and sizes are written at the end.
  std::uint64_t encoded_bytes = 0;     // of all images; 0: decoded images of one size
  std::vector<std::uint64_t> offsets;  // (n_written + 1)
  std::vector<std::int32_t> sizes;     // (n_written, 2)
  bool has_jpeg = false, has_png = false, has_pixels = false;

  State(const std::string& target, bool replace, std::int64_t n, const Placement& place)
      : pending(check_output(target, replace), PartialName::of_process),
        path(target),
        placement(place),
        hdf5(pending.partial_path(),
             {.user_block_bytes = hdf5::kUserBlockBytes,
              .placement = placement,
              .format = placement.chunk_bytes > 0 ? hdf5::FileFormat::v110 : hdf5::FileFormat::earliest,
              .name = target}) {
    require(n > 0, ErrorCode::data_source, "{} is not written: an image set needs at least one sample", path);
    n_samples = static_cast<std::uint64_t>(n);
  }

  void write(std::uint64_t first_row, std::uint64_t n_rows, std::span<const std::uint8_t> images,
             std::span<const std::int32_t> labels) {
    hdf5.write_rows("images", first_row, n_rows, images.data());
    hdf5.write_rows("labels", n_written, labels.size(), labels.data());
    images_hash.update(std::as_bytes(images));
    labels_hash.update(std::as_bytes(labels));
    n_written += labels.size();
  }
  void append_sized(std::span<const std::uint8_t> image, int height, int width, std::int32_t label) {
    require(encoded_bytes > 0 && image.size() <= encoded_bytes - offsets.back() && n_written < n_samples,
            ErrorCode::internal, "{}: an image of {} bytes does not fit after {} of {}", path, image.size(), n_written,
            n_samples);
    write(offsets.back(), image.size(), image, std::span(&label, 1));
    offsets.push_back(offsets.back() + image.size());
    sizes.insert(sizes.end(), {height, width});
  }
};

ImageFileWriter::ImageFileWriter(const std::string& path, bool replace, std::int64_t n_samples, int height, int width,
                                 int channels, const Placement& placement) {
  const std::uint64_t image_bytes = static_cast<std::uint64_t>(height) * width * channels;
  state_ = std::make_unique<State>(
      path, replace, n_samples,
      placement_of(placement, image_bytes, static_cast<std::uint64_t>(n_samples) * image_bytes));
  State& s = *state_;
  s.image_bytes = image_bytes;
  s.channels = static_cast<std::size_t>(channels);
  const auto dim = [](int d) { return static_cast<std::uint64_t>(d); };
  s.hdf5.create_dataset("images", "uint8", {s.n_samples, dim(height), dim(width), dim(channels)},
                        s.placement.chunk_bytes / image_bytes);
  s.hdf5.create_dataset("labels", "int32", {s.n_samples});
}

ImageFileWriter::ImageFileWriter(const std::string& path, bool replace, std::int64_t n_samples,
                                 std::uint64_t image_bytes, const Placement& placement)
    : state_(std::make_unique<State>(path, replace, n_samples, placement_of(placement, 1, image_bytes))) {
  State& s = *state_;
  require(image_bytes > 0, ErrorCode::internal, "{}: the images have no bytes", path);
  s.encoded_bytes = image_bytes;
  s.offsets.push_back(0);
  s.hdf5.create_dataset("images", "uint8", {image_bytes}, s.placement.chunk_bytes);
  s.hdf5.create_dataset("labels", "int32", {s.n_samples});
  s.hdf5.create_dataset("offsets", "uint64", {s.n_samples + 1});
  s.hdf5.create_dataset("sizes", "int32", {s.n_samples, 2});
}

ImageFileWriter::~ImageFileWriter() = default;

void ImageFileWriter::append(std::span<const std::uint8_t> images, std::span<const std::int32_t> labels) {
  State& s = *state_;
  const std::uint64_t n = labels.size();
  require(s.encoded_bytes == 0 && images.size() == n * s.image_bytes && n <= s.n_samples - s.n_written,
          ErrorCode::internal, "{}: {} samples of {} bytes do not fit after {} of {}", s.path, n, images.size(),
          s.n_written, s.n_samples);
  s.write(s.n_written, n, images, labels);
}

void ImageFileWriter::append_encoded(std::span<const std::uint8_t> image, int height, int width, std::int32_t label) {
  state_->append_sized(image, height, width, label);
  (format_of(image) == ImageFormat::png ? state_->has_png : state_->has_jpeg) = true;
}

void ImageFileWriter::append_pixels(std::span<const std::uint8_t> image, int height, int width, std::int32_t label) {
  state_->append_sized(image, height, width, label);
  state_->has_pixels = true;
}

void ImageFileWriter::finish(const ImageSetInfo& info, const std::string& source) {
  State& s = *state_;
  require(s.n_written == s.n_samples && (s.encoded_bytes == 0 || s.offsets.back() == s.encoded_bytes),
          ErrorCode::internal, "{}: {} of {} samples were written", s.path, s.n_written, s.n_samples);
  const std::size_t channels = s.encoded_bytes > 0 ? info.mean.size() : s.channels;
  require(info.mean.size() == channels && info.stddev.size() == channels, ErrorCode::internal,
          "{}: mean and std need one value per channel", s.path);
  if (s.encoded_bytes > 0) {
    s.hdf5.write_rows("offsets", 0, s.n_samples + 1, s.offsets.data());
    s.hdf5.write_rows("sizes", 0, s.n_samples, s.sizes.data());
  }
  s.hdf5.attribute("format", std::string(kImageFormat));
  // The oldest format version that suffices, so that older programs can read the file where possible.
  const std::int64_t encoded_version = s.has_pixels                 ? kPixelsFormatVersion
                                       : s.has_png || channels != 3 ? kEncodedFormatVersion
                                                                    : kJpegFormatVersion;
  require(!s.has_pixels || !(s.has_jpeg || s.has_png), ErrorCode::internal, "{}: encoded images among decoded ones",
          s.path);
  const std::int64_t version = s.encoded_bytes > 0 ? encoded_version : kImageFormatVersion;
  s.hdf5.attribute("format_version", version);
  if (version == kEncodedFormatVersion || version == kPixelsFormatVersion) {
    const char* const formats = s.has_pixels ? kPixels : !s.has_png ? "jpeg" : s.has_jpeg ? "jpeg, png" : "png";
    s.hdf5.attribute("channels", static_cast<std::int64_t>(channels));
    s.hdf5.attribute("formats", std::string(formats));
  }
  s.hdf5.attribute("split", info.split);
  s.hdf5.attribute("classes", std::int64_t{info.classes});
  s.hdf5.attribute("mean", std::span<const float>(info.mean));
  s.hdf5.attribute("std", std::span<const float>(info.stddev));
  s.hdf5.attribute("class_names", info.class_names);
  s.hdf5.attribute("source", valid_utf8(source));
  s.hdf5.attribute("images_xxh3", hash_text(s.images_hash.digest()));
  s.hdf5.attribute("labels_xxh3", hash_text(s.labels_hash.digest()));
  s.hdf5.close();

  const InputFile written(s.pending.partial_path());
  const StoredBytes images = locate_in_a_row(written);
  if (s.placement.chunk_bytes > 0) check_chunks(written, images, s.images_hash.digest());
  write_user_block(s.pending.partial_path(), {images, read_metadata(written, &images).labels});
  s.pending.publish();
}

}  // namespace lockstep::data
