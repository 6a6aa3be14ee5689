#include "data/image_file.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/printable.h"
#include "base/utf8.h"
#include "data/data_file.h"
#include "data/image_decoder.h"
#include "hdf5/reader.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kMaxSide = 1 << 16;  // pixels
constexpr std::int64_t kMaxChannels = 1024;
constexpr std::int64_t kMaxClasses = 1 << 24;
/// The limit for a file without a user block. HDF5 looks up each chunk, which takes up to a second for this many.
constexpr std::uint64_t kMaxForeignChunks = 4096;

void check_statistics(const std::string& path, const ImageSetInfo& info) {
  const auto channels = static_cast<std::size_t>(info.channels);
  require(info.mean.size() == channels && info.stddev.size() == channels, ErrorCode::data_format,
          "{}: 'mean' and 'std' must have one value per channel ({}), but have {} and {}", path, channels,
          info.mean.size(), info.stddev.size());
  for (std::size_t c = 0; c < channels; ++c)
    require(std::isfinite(info.mean[c]) && std::isfinite(info.stddev[c]) && info.stddev[c] > 0.0f,
            ErrorCode::data_format, "{}: 'mean' must be finite and 'std' above 0, but channel {} has {} and {}", path,
            c, info.mean[c], info.stddev[c]);
}

bool is_sensible(std::uint64_t n, std::int64_t max) { return n >= 1 && n <= static_cast<std::uint64_t>(max); }

/// The number of chunks. Throws if the file is too short for them.
std::uint64_t count_chunks(const InputFile& file, const hdf5::DatasetPlace& images) {
  const std::uint64_t n = StoredBytes::n_chunks(images.size_bytes, images.chunk_bytes);
  require(n <= file.size_bytes() / images.chunk_bytes, ErrorCode::data_damaged,
          "{} is truncated: '/images' has {} chunks of {} bytes, but the file has {} bytes", file.path(), n,
          images.chunk_bytes, file.size_bytes());
  return n;
}

/// The positions of the images; each chunk is inside the file. `known`: see read_metadata().
StoredBytes locate(const InputFile& file, const hdf5::Reader& hdf5, const hdf5::DatasetPlace& images,
                   const StoredBytes* known) {
  if (images.chunk_rows == 0) {
    check_inside(file, "images", images);
    return StoredBytes::contiguous({images.offset, images.size_bytes});
  }
  const std::uint64_t n = count_chunks(file, images);
  const auto offset_of = hdf5.chunk_offsets("images", images);
  if (known) {
    if (known->size_bytes != images.size_bytes || known->chunk_bytes != images.chunk_bytes ||
        known->offsets.size() != n)
      fail_user_block(file, hdf5::FileKind::images);
    for (const std::uint64_t chunk : {std::uint64_t{0}, std::uint64_t{1}, n - 1})
      if (chunk < n && offset_of(chunk) != known->offsets[chunk]) fail_user_block(file, hdf5::FileKind::images);
    return *known;
  }
  require(n <= kMaxForeignChunks, ErrorCode::data_format,
          "{}: '/images' has {} chunks; in a file that `lockstep data import` did not write, at most {} can be located "
          "in reasonable time: use larger chunks, or none",
          file.path(), n, kMaxForeignChunks);
  StoredBytes out{images.size_bytes, images.chunk_bytes, {}};
  for (std::uint64_t chunk = 0; chunk < n; ++chunk) {
    out.offsets.push_back(offset_of(chunk));
    require(out.offsets.back() <= file.size_bytes() && images.chunk_bytes <= file.size_bytes() - out.offsets.back(),
            ErrorCode::data_damaged,
            "{} is truncated: chunk {} of '/images' needs {} bytes from byte {}, but the file has {}", file.path(),
            chunk, images.chunk_bytes, out.offsets.back(), file.size_bytes());
  }
  return out;
}

/// Checks types, shapes and positions in a file of decoded images, and fills the sizes of `out`.
void read_decoded(const InputFile& file, const hdf5::Reader& hdf5, std::uint64_t n_labels, const StoredBytes* known,
                  ImageFile& out) {
  const hdf5::DatasetPlace images = hdf5.dataset("images", hdf5::Layouts::contiguous_or_chunked);
  check_kind(images.type == "uint8" && images.dims.size() == 4, file, "images",
             "uint8 (samples, height, width, channels)", images);
  require(images.dims[0] == n_labels, ErrorCode::data_format, "{} contains {} images but {} labels", file.path(),
          images.dims[0], n_labels);
  require(is_sensible(images.dims[1], kMaxSide) && is_sensible(images.dims[2], kMaxSide) &&
              is_sensible(images.dims[3], kMaxChannels),
          ErrorCode::data_format, "{}: images of shape {} x {} x {} are not possible", file.path(), images.dims[1],
          images.dims[2], images.dims[3]);
  out.images = locate(file, hdf5, images, known);
  out.info.height = static_cast<int>(images.dims[1]);
  out.info.width = static_cast<int>(images.dims[2]);
  out.info.channels = static_cast<int>(images.dims[3]);
}

/// Checks every offset and every size in a file of encoded images, or of decoded ones of several sizes, and fills the
/// extremes of the index. A message names the sample and what to do.
void check_index(const InputFile& file, ImageFile& out) {
  EncodedIndex& index = *out.encoded;
  const std::vector<std::uint64_t> offsets = read_offsets(file, out);
  require(offsets.front() == 0 && offsets.back() == out.images.size_bytes, ErrorCode::data_format,
          "{}: '/offsets' must go from 0 to the {} bytes of '/images', but goes from {} to {}", file.path(),
          out.images.size_bytes, offsets.front(), offsets.back());
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::uint64_t n_bytes = offsets[i + 1] - offsets[i];
    require(offsets[i] < offsets[i + 1] && n_bytes <= kMaxImageBytes, ErrorCode::data_format,
            "{}: sample {} is stored from byte {} to {} of '/images', which is not possible: copy or import the data "
            "set again",
            file.path(), i, offsets[i], offsets[i + 1]);
    index.largest_bytes = std::max(index.largest_bytes, n_bytes);
  }
  const std::vector<std::array<std::int32_t, 2>> sizes = read_sizes(file, out);
  index.min_height = index.min_width = static_cast<int>(kMaxSide);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto [height, width] = sizes[i];
    require(height >= 1 && height < kMaxSide && width >= 1 && width < kMaxSide &&
                std::int64_t{height} * width <= kMaxImagePixels,
            ErrorCode::data_format,
            "{}: sample {} has a height of {} and a width of {} in '/sizes', which is not possible: copy or import the "
            "data set again",
            file.path(), i, height, width);
    const std::int64_t n_values = std::int64_t{height} * width * out.info.channels;
    require(
        !index.is_decoded || offsets[i + 1] - offsets[i] == static_cast<std::uint64_t>(n_values),
        ErrorCode::data_format,
        "{}: sample {} has {} bytes of '/images', but {} x {} pixels (height, width) of {} channel(s) need {}: copy "
        "or import the data set again",
        file.path(), i, offsets[i + 1] - offsets[i], height, width, out.info.channels, n_values);
    index.min_height = std::min(index.min_height, height);
    index.min_width = std::min(index.min_width, width);
    index.max_height = std::max(index.max_height, height);
    index.max_width = std::max(index.max_width, width);
    index.largest_pixels = std::max(index.largest_pixels, std::int64_t{height} * width);
  }
  const bool one_size = index.min_height == index.max_height && index.min_width == index.max_width;
  out.info.height = one_size ? index.min_height : 0;
  out.info.width = one_size ? index.min_width : 0;
}

void read_encoded(const InputFile& file, const hdf5::Reader& hdf5, std::int64_t version, std::uint64_t n_labels,
                  const StoredBytes* known, ImageFile& out) {
  const hdf5::DatasetPlace images = hdf5.dataset("images", hdf5::Layouts::contiguous_or_chunked);
  const hdf5::DatasetPlace offsets = hdf5.dataset("offsets"), sizes = hdf5.dataset("sizes");
  check_kind(images.type == "uint8" && images.dims.size() == 1, file, "images", "uint8 (bytes)", images);
  check_kind(offsets.type == "uint64" && offsets.dims.size() == 1 && offsets.dims[0] == n_labels + 1, file, "offsets",
             "uint64 (samples + 1)", offsets);
  check_kind(sizes.type == "int32" && sizes.dims.size() == 2 && sizes.dims[0] == n_labels && sizes.dims[1] == 2, file,
             "sizes", "int32 (samples, 2)", sizes);
  check_inside(file, "offsets", offsets);
  check_inside(file, "sizes", sizes);
  out.images = locate(file, hdf5, images, known);
  out.encoded.emplace();
  out.encoded->offsets = {offsets.offset, offsets.size_bytes};
  out.encoded->sizes = {sizes.offset, sizes.size_bytes};
  const bool is_jpeg = version == kJpegFormatVersion;
  const std::int64_t channels = is_jpeg ? 3 : hdf5.integer("channels");
  require(channels == 1 || channels == 3, ErrorCode::data_format,
          "{}: encoded images are read with 1 or 3 channels, but the attribute 'channels' is {}", file.path(),
          channels);
  out.info.channels = static_cast<int>(channels);
  out.encoded->formats = is_jpeg ? "jpeg" : hdf5.text("formats");
  out.encoded->is_decoded = version == kPixelsFormatVersion;
  require(
      out.encoded->is_decoded == (out.encoded->formats == kPixels), ErrorCode::data_format,
      "{}: the attribute 'formats' is '{}', which does not fit format_version {}: copy or import the data set again",
      file.path(), printable(out.encoded->formats), version);
}

/// Reads the labels, and the images in either form.
void read_datasets(const InputFile& file, const hdf5::Reader& hdf5, std::int64_t version, const StoredBytes* known,
                   ImageFile& out) {
  const hdf5::DatasetPlace labels = hdf5.dataset("labels");
  check_kind(labels.type == "int32" && labels.dims.size() == 1, file, "labels", "int32 (samples)", labels);
  require(labels.dims[0] > 0, ErrorCode::data_source, "{} contains no samples", file.path());
  require(labels.dims[0] <= static_cast<std::uint64_t>(kMaxSamples), ErrorCode::data_format,
          "{} contains {} samples; at most {} are possible", file.path(), labels.dims[0], kMaxSamples);
  check_inside(file, "labels", labels);
  out.labels = {labels.offset, labels.size_bytes};
  out.info.n_samples = static_cast<std::int64_t>(labels.dims[0]);
  if (version == kImageFormatVersion)
    read_decoded(file, hdf5, labels.dims[0], known, out);
  else
    read_encoded(file, hdf5, version, labels.dims[0], known, out);
}

}  // namespace

StoredBytes locate_in_a_row(const InputFile& file) {
  const hdf5::Reader hdf5 = open_hdf5(file.path());
  const hdf5::DatasetPlace place = hdf5.dataset("images", hdf5::Layouts::contiguous_or_chunked);
  if (place.chunk_rows == 0) return locate(file, hdf5, place, nullptr);
  const std::uint64_t n = count_chunks(file, place);
  require(n >= 2, ErrorCode::internal, "{}: images in {} chunks", file.path(), n);
  const auto offset_of = hdf5.chunk_offsets("images", place);
  const std::uint64_t second = offset_of(1);
  return StoredBytes::in_a_row(place.size_bytes, place.chunk_bytes, offset_of(0), second,
                               n > 2 ? offset_of(2) - second : place.chunk_bytes);
}

ImageFile read_metadata(const InputFile& file, const StoredBytes* images) {
  const std::string& path = file.path();
  const hdf5::Reader hdf5 = open_hdf5(path);
  const std::int64_t version = read_format_version(hdf5, path, kImageFormat, kPixelsFormatVersion);
  ImageFile out;
  ImageSetInfo& info = out.info;
  info.path = path;
  read_datasets(file, hdf5, version, images, out);
  const std::int64_t classes = hdf5.integer("classes");
  require(classes >= 1 && classes <= kMaxClasses, ErrorCode::data_format, "{}: {} classes are not possible", path,
          classes);
  info.classes = static_cast<int>(classes);
  info.mean = hdf5.floats("mean");
  info.stddev = hdf5.floats("std");
  check_statistics(path, info);

  info.split = optional_text(hdf5, "split");
  out.source = optional_text(hdf5, "source");
  out.images_xxh3 = optional_text(hdf5, "images_xxh3");
  out.labels_xxh3 = optional_text(hdf5, "labels_xxh3");
  // Earlier releases accepted folder names that are not valid UTF-8. They are converted here, so that the name is the
  // same wherever it is used.
  if (hdf5.has_attribute("class_names"))
    for (const std::string& name : hdf5.texts("class_names")) info.class_names.push_back(valid_utf8(name));
  require(info.class_names.empty() || info.class_names.size() == static_cast<std::size_t>(info.classes),
          ErrorCode::data_format, "{} names {} classes but has {}", path, info.class_names.size(), info.classes);
  return out;
}

ImageFile open_image_file(const InputFile& file) {
  const std::optional<UserBlock> block = checked_user_block(file, hdf5::FileKind::images);
  const auto read = [&] {
    ImageFile found = read_metadata(file, block ? &block->samples : nullptr);
    if (block) {
      if (found.images != block->samples || found.labels != block->index) fail_user_block(file, hdf5::FileKind::images);
      found.images = {};  // there may be millions of chunks, and the parent knows them
    }
    return bytes_of_layout(found);
  };
  auto out = layout_of<ImageFile>(file, read_in_child(file, read));
  if (block)
    out.images = block->samples;
  else
    require_no_user_block(file, hdf5::FileKind::images);
  if (out.encoded) check_index(file, out);
  out.has_user_block = block.has_value();
  return out;
}

std::vector<std::int32_t> read_labels(const InputFile& file, const ImageFile& layout) {
  const ImageSetInfo& info = layout.info;
  std::vector<std::int32_t> labels(static_cast<std::size_t>(info.n_samples));
  file.read(layout.labels.offset, std::as_writable_bytes(std::span(labels)), "its labels");
  for (std::size_t i = 0; i < labels.size(); ++i)
    require(labels[i] >= 0 && labels[i] < info.classes, ErrorCode::data_damaged,
            "{}: sample {} has label {}, but the data set has {} classes (0 to {})", file.path(), i, labels[i],
            info.classes, info.classes - 1);
  return labels;
}

std::vector<std::uint64_t> read_offsets(const InputFile& file, const ImageFile& layout) {
  std::vector<std::uint64_t> offsets(static_cast<std::size_t>(layout.info.n_samples) + 1);
  file.read(layout.encoded->offsets.offset, std::as_writable_bytes(std::span(offsets)), "its offsets");
  return offsets;
}

std::vector<std::array<std::int32_t, 2>> read_sizes(const InputFile& file, const ImageFile& layout) {
  std::vector<std::array<std::int32_t, 2>> sizes(static_cast<std::size_t>(layout.info.n_samples));
  file.read(layout.encoded->sizes.offset, std::as_writable_bytes(std::span(sizes)), "its sizes");
  return sizes;
}

Verification verify_image_file(const InputFile& file, const ImageFile& layout,
                               const std::function<void(std::uint64_t)>& progress) {
  Verification out = begin_verification(layout.has_user_block);
  verify_bytes(file, "images", layout.images, layout.images_xxh3, progress, out);
  verify_bytes(file, "labels", StoredBytes::contiguous(layout.labels), layout.labels_xxh3, progress, out);
  try {
    read_labels(file, layout);
  } catch (const Error& error) {
    out.damaged.emplace_back(error.what());
  }
  return out;
}

}  // namespace lockstep::data
