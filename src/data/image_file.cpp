#include "data/image_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "data/hdf5_file.h"
#include "data/limited_child.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::data {
namespace {

constexpr char kFormat[] = "lockstep-images";
constexpr std::int64_t kMaxSide = 1 << 16;  // pixels
constexpr std::int64_t kMaxChannels = 1024;
constexpr std::int64_t kMaxClasses = 1 << 24;

/// HDF5 allows its signature at 0 and at every power of two from 512 on.
bool has_hdf5_signature(const InputFile& file) {
  constexpr std::array<unsigned char, 8> kSignature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  for (std::uint64_t offset = 0; offset + kSignature.size() <= file.size_bytes();
       offset = offset == 0 ? 512 : 2 * offset) {
    std::array<unsigned char, 8> found{};
    file.read(offset, std::as_writable_bytes(std::span(found)), "its signature");
    if (found == kSignature) return true;
  }
  return false;
}

std::string shape_text(const std::vector<std::uint64_t>& dims) { return fmt::format("({})", fmt::join(dims, ", ")); }

void check_statistics(const std::string& path, const ImageSetInfo& info) {
  const auto channels = static_cast<std::size_t>(info.channels);
  require(info.mean.size() == channels && info.stddev.size() == channels, ErrorCode::data_format,
          "{}: 'mean' and 'std' must have one value a channel ({}), but have {} and {}", path, channels,
          info.mean.size(), info.stddev.size());
  for (std::size_t c = 0; c < channels; ++c)
    require(std::isfinite(info.mean[c]) && std::isfinite(info.stddev[c]) && info.stddev[c] > 0.0f,
            ErrorCode::data_format, "{}: 'mean' must be finite and 'std' above 0, but channel {} has {} and {}", path,
            c, info.mean[c], info.stddev[c]);
}

/// Types and shapes of /images and /labels, and their bytes against the file's length.
void check_datasets(const InputFile& file, const DatasetPlace& images, const DatasetPlace& labels) {
  const std::string& path = file.path();
  require(images.type == "uint8" && images.dims.size() == 4, ErrorCode::data_format,
          "{}: '/images' must be uint8 (samples, height, width, channels), but is {} {}", path, images.type,
          shape_text(images.dims));
  require(labels.type == "int32" && labels.dims.size() == 1, ErrorCode::data_format,
          "{}: '/labels' must be int32 (samples), but is {} {}", path, labels.type, shape_text(labels.dims));
  require(images.dims[0] == labels.dims[0], ErrorCode::data_format, "{} holds {} images but {} labels", path,
          images.dims[0], labels.dims[0]);
  require(images.dims[0] > 0, ErrorCode::data_empty, "{} holds no samples", path);
  require(images.dims[0] <= static_cast<std::uint64_t>(kMaxSamples), ErrorCode::data_format,
          "{} holds {} samples; at most {} can be numbered", path, images.dims[0], kMaxSamples);
  const auto sensible = [](std::uint64_t n, std::int64_t most) {
    return n >= 1 && n <= static_cast<std::uint64_t>(most);
  };
  require(sensible(images.dims[1], kMaxSide) && sensible(images.dims[2], kMaxSide) &&
              sensible(images.dims[3], kMaxChannels),
          ErrorCode::data_format, "{}: images of shape {} x {} x {} are not sensible", path, images.dims[1],
          images.dims[2], images.dims[3]);
  for (const auto& [name, place] : {std::pair{"images", &images}, std::pair{"labels", &labels}})
    require(place->offset <= file.size_bytes() && place->size_bytes <= file.size_bytes() - place->offset,
            ErrorCode::data_truncated, "{} is cut short: '/{}' needs bytes {} to {}, but the file has {}", path, name,
            place->offset, place->offset + place->size_bytes, file.size_bytes());
}

/// Through HDF5, in this process.
ImageFile read_metadata(const InputFile& file) {
  const std::string& path = file.path();
  const Hdf5Reader hdf5(path);
  require(hdf5.has_attribute("format") && hdf5.text("format") == kFormat, ErrorCode::data_format,
          "{} is an HDF5 file, but not an image set: it has no attribute format='{}'", path, kFormat);
  const std::int64_t version = hdf5.integer("format_version");
  require(version == kImageFormatVersion, ErrorCode::data_format,
          "{} has format version {}; this program reads version {}", path, version, kImageFormatVersion);
  const DatasetPlace images = hdf5.dataset("images");
  const DatasetPlace labels = hdf5.dataset("labels");
  check_datasets(file, images, labels);

  ImageFile out;
  out.images = {images.offset, images.size_bytes};
  out.labels = {labels.offset, labels.size_bytes};
  ImageSetInfo& info = out.info;
  info.path = path;
  info.n_samples = static_cast<std::int64_t>(images.dims[0]);
  info.height = static_cast<int>(images.dims[1]);
  info.width = static_cast<int>(images.dims[2]);
  info.channels = static_cast<int>(images.dims[3]);
  const std::int64_t classes = hdf5.integer("classes");
  require(classes >= 1 && classes <= kMaxClasses, ErrorCode::data_format, "{}: {} classes are not sensible", path,
          classes);
  info.classes = static_cast<int>(classes);
  info.mean = hdf5.floats("mean");
  info.stddev = hdf5.floats("std");
  check_statistics(path, info);

  const auto optional_text = [&](const char* name) { return hdf5.has_attribute(name) ? hdf5.text(name) : ""; };
  info.split = optional_text("split");
  out.source = optional_text("source");
  out.images_xxh3 = optional_text("images_xxh3");
  out.labels_xxh3 = optional_text("labels_xxh3");
  if (hdf5.has_attribute("class_names")) info.class_names = hdf5.texts("class_names");
  require(info.class_names.empty() || info.class_names.size() == static_cast<std::size_t>(info.classes),
          ErrorCode::data_format, "{} names {} classes but has {}", path, info.class_names.size(), info.classes);
  return out;
}

}  // namespace

ImageFile open_image_file(const InputFile& file) {
  require(file.size_bytes() > 0, ErrorCode::data_truncated, "{} is empty (0 bytes)", file.path());
  const std::optional<Seal> seal = check_seal(file);
  if (seal) {
    ImageFile out = read_metadata(file);
    require(out.images == seal->images && out.labels == seal->labels, ErrorCode::data_damaged,
            "{}: its first block and its HDF5 metadata disagree about where the images lie", file.path());
    out.sealed = true;
    return out;
  }
  require(has_hdf5_signature(file), ErrorCode::data_format, "{} ({} bytes) is not an HDF5 file", file.path(),
          file.size_bytes());
  const ChildVerdict verdict = run_in_limited_child([&] { read_metadata(file); });
  if (verdict.good) return read_metadata(file);
  if (verdict.code) throw Error(*verdict.code, verdict.sentence);
  fail(ErrorCode::data_format, "{} cannot be opened as HDF5: {}", file.path(), verdict.sentence);
}

std::vector<std::int32_t> read_labels(const InputFile& file, const ImageFile& layout) {
  const ImageSetInfo& info = layout.info;
  std::vector<std::int32_t> labels(static_cast<std::size_t>(info.n_samples));
  file.read(layout.labels.offset, std::as_writable_bytes(std::span(labels)), "its labels");
  for (std::size_t i = 0; i < labels.size(); ++i)
    require(labels[i] >= 0 && labels[i] < info.classes, ErrorCode::data_label,
            "{}: sample {} has label {}, but the data set has {} classes (0 to {})", file.path(), i, labels[i],
            info.classes, info.classes - 1);
  return labels;
}

std::vector<std::string> verify_image_file(const InputFile& file, const ImageFile& layout,
                                           const std::function<void(std::uint64_t)>& progress) {
  std::vector<std::string> damaged;
  const auto compare = [&](const char* name, const ByteRange& range, const std::string& stored) {
    if (stored.empty()) {
      damaged.push_back(fmt::format("{0}: '/{1}' cannot be checked: the file carries no {1}_xxh3", file.path(), name));
      return;
    }
    const std::string found = hash_text(hash_range(file, range, fmt::format("/{}", name), progress));
    if (found != stored)
      damaged.push_back(fmt::format("{}: '/{}' (bytes {} to {}) is damaged: its xxh3 is {}, but {} was stored",
                                    file.path(), name, range.offset, range.end(), found, stored));
  };
  compare("images", layout.images, layout.images_xxh3);
  compare("labels", layout.labels, layout.labels_xxh3);
  return damaged;
}

// ---------------------------------------------------------------------------------------------------------------

struct ImageFileWriter::State {
  struct HashFree {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  using HashState = std::unique_ptr<XXH3_state_t, HashFree>;

  PendingFile pending;
  std::string path;
  Hdf5Writer hdf5;
  std::uint64_t n_samples = 0, n_written = 0, image_bytes = 0;
  std::size_t channels = 0;
  HashState images_hash{XXH3_createState()}, labels_hash{XXH3_createState()};

  State(const std::string& target, bool replace)
      : pending(target, replace), path(target), hdf5(pending.temporary_path(), kSealBytes) {
    XXH3_64bits_reset(images_hash.get());
    XXH3_64bits_reset(labels_hash.get());
  }
};

ImageFileWriter::ImageFileWriter(const std::string& path, bool replace, std::int64_t n_samples, int height, int width,
                                 int channels)
    : state_(std::make_unique<State>(path, replace)) {
  State& s = *state_;
  require(n_samples > 0, ErrorCode::data_empty, "an image set without samples is not written to {}", path);
  s.n_samples = static_cast<std::uint64_t>(n_samples);
  s.image_bytes = static_cast<std::uint64_t>(height) * width * channels;
  s.channels = static_cast<std::size_t>(channels);
  const auto dim = [](int d) { return static_cast<std::uint64_t>(d); };
  s.hdf5.create_dataset("images", "uint8", {s.n_samples, dim(height), dim(width), dim(channels)});
  s.hdf5.create_dataset("labels", "int32", {s.n_samples});
}

ImageFileWriter::~ImageFileWriter() = default;

void ImageFileWriter::append(std::span<const std::uint8_t> images, std::span<const std::int32_t> labels) {
  State& s = *state_;
  const std::uint64_t n = labels.size();
  require(images.size() == n * s.image_bytes && n <= s.n_samples - s.n_written, ErrorCode::internal,
          "{}: {} samples of {} bytes do not fit behind {} of {}", s.path, n, images.size(), s.n_written, s.n_samples);
  s.hdf5.write_rows("images", s.n_written, n, images.data());
  s.hdf5.write_rows("labels", s.n_written, n, labels.data());
  XXH3_64bits_update(s.images_hash.get(), images.data(), images.size());
  XXH3_64bits_update(s.labels_hash.get(), labels.data(), labels.size_bytes());
  s.n_written += n;
}

void ImageFileWriter::finish(const ImageSetInfo& info, const std::string& source) {
  State& s = *state_;
  require(s.n_written == s.n_samples, ErrorCode::internal, "{}: {} of {} samples were written", s.path, s.n_written,
          s.n_samples);
  require(info.mean.size() == s.channels && info.stddev.size() == s.channels, ErrorCode::internal,
          "{}: mean and std need one value a channel", s.path);
  s.hdf5.attribute("format", std::string(kFormat));
  s.hdf5.attribute("format_version", kImageFormatVersion);
  s.hdf5.attribute("split", info.split);
  s.hdf5.attribute("classes", std::int64_t{info.classes});
  s.hdf5.attribute("mean", std::span<const float>(info.mean));
  s.hdf5.attribute("std", std::span<const float>(info.stddev));
  s.hdf5.attribute("class_names", info.class_names);
  s.hdf5.attribute("source", source);
  s.hdf5.attribute("images_xxh3", hash_text(XXH3_64bits_digest(s.images_hash.get())));
  s.hdf5.attribute("labels_xxh3", hash_text(XXH3_64bits_digest(s.labels_hash.get())));
  s.hdf5.close();

  const InputFile written(s.pending.temporary_path());
  const ImageFile layout = read_metadata(written);
  write_seal(s.pending.temporary_path(), {layout.images, layout.labels});
  s.pending.publish();
}

}  // namespace lockstep::data
