#include "data/image_set.h"

#include <cstring>

#include "data/pool.h"
#include "data/region_set.h"
#include "data/sample_file.h"
#include "data/shaped_decoder.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// Decoded images of one size. Each is read with a single pread, wherever it is stored.
class DecodedSet final : public ImageSet {
 public:
  explicit DecodedSet(SampleFile file) : file_(std::move(file)) {}
  const ImageSetInfo& info() const override { return file_.info; }

  void read_image(std::int64_t sample, std::uint32_t, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    check_request(file_.info, sample, image);
    file_.read(sample, static_cast<std::uint64_t>(file_.info.first_sample + sample) * image.size(), image);
    label = file_.labels[static_cast<std::size_t>(sample)];
  }
  double stored_bytes() const override { return static_cast<double>(file_.info.image_bytes()); }
  std::vector<std::int32_t> classes() const override { return file_.labels; }
  void require_unchanged() const override { file_.file.require_unchanged(); }

 private:
  SampleFile file_;
};

/// The images of another set, resized and cropped.
class ShapedSet final : public ImageSet {
 public:
  ShapedSet(std::unique_ptr<ImageSet> set, const ImageShaping& shaping)
      : set_(std::move(set)), shaping_(shaping), info_(set_->info()) {
    require(info_.channels == 1 || info_.channels == 3, ErrorCode::not_supported,
            "{} has images of {} channels; only images of 1 or 3 channels can be resized", info_.path, info_.channels);
    info_.height = info_.width = shaping_.image_size;
    info_.reader_bytes +=
        set_->info().image_bytes() + static_cast<std::size_t>(info_.width) * set_->info().height * info_.channels;
  }
  const ImageSetInfo& info() const override { return info_; }

  void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    check_request(info_, sample, image);
    const ImageSetInfo& stored = set_->info();
    auto buffers = pool_.lend();
    buffers->pixels.resize(stored.image_bytes());
    set_->read_image(sample, epoch, buffers->pixels, label);
    const PixelView view{buffers->pixels.data(), stored.height, stored.width, stored.channels,
                         std::ptrdiff_t{stored.width} * stored.channels};
    const Box box = box_of(shaping_, stored.height, stored.width, id_of(info_, sample), epoch);
    resize_box(buffers->resizer, view, {.width = stored.width, .height = stored.height}, box, shaping_.resized_crop,
               shaping_.image_size, image);
  }
  std::vector<std::int32_t> classes() const override { return set_->classes(); }
  double stored_bytes() const override { return set_->stored_bytes(); }
  ReaderWork reader_work() const override {
    ReaderWork work = set_->reader_work();
    work.resized_pixels += static_cast<double>(info_.height) * info_.width;
    return work;
  }
  std::vector<std::string> faster_reading() const override { return set_->faster_reading(); }
  void require_unchanged() const override { set_->require_unchanged(); }

 private:
  struct Buffers {
    std::vector<std::uint8_t> pixels;
    Resizer resizer;
  };
  std::unique_ptr<ImageSet> set_;
  ImageShaping shaping_;
  ImageSetInfo info_;
  mutable Pool<Buffers> pool_;
};

/// JPEG and PNG images. They are read, decoded to a size that is not below the needed one, and then resized and
/// cropped.
class EncodedSet final : public ImageSet {
 public:
  /// shaping.image_size 0: all images have the size in `info` and keep it.
  EncodedSet(SampleFile file, const ImageShaping& shaping)
      : file_(std::move(file)), offsets_(read_offsets(file_.file, file_.layout)), shaping_(shaping) {
    ImageSetInfo& info = file_.info;
    offsets_ = {offsets_.begin() + info.first_sample, offsets_.begin() + info.first_sample + info.n_samples + 1};
    const EncodedIndex& index = *file_.layout.encoded;
    info.reader_bytes = index.largest_bytes;
    if (shaping_.image_size == 0) return;
    info.height = info.width = shaping_.image_size;
    const auto channels = static_cast<std::size_t>(info.channels);
    info.reader_bytes += static_cast<std::size_t>(index.largest_pixels) * channels +
                         static_cast<std::size_t>(shaping_.image_size) * index.max_height * channels;
  }
  const ImageSetInfo& info() const override { return file_.info; }

  void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    check_request(file_.info, sample, image);
    auto buffers = pool_.lend();
    const auto at = static_cast<std::size_t>(sample);
    buffers->bytes.resize(file_.layout.encoded->largest_bytes);
    const auto bytes = std::span(buffers->bytes).first(offsets_[at + 1] - offsets_[at]);
    file_.read(sample, offsets_[at], bytes);
    label = file_.labels[at];
    ShapedDecoder& decoder = buffers->decoder;
    check(decoder.open(bytes), sample, decoder);
    if (shaping_.image_size == 0)
      read_as_stored(sample, decoder, image);
    else
      check(decoder.read_shaped(shaping_, id_of(file_.info, sample), epoch, file_.info.channels, image), sample,
            decoder);
  }
  std::vector<std::int32_t> classes() const override { return file_.labels; }
  double stored_bytes() const override {
    return static_cast<double>(offsets_.back() - offsets_.front()) / static_cast<double>(file_.info.n_samples);
  }
  ReaderWork reader_work() const override { return {.decodes = true}; }
  std::vector<std::string> faster_reading() const override { return {"--store decoded"}; }
  void require_unchanged() const override { file_.file.require_unchanged(); }

 private:
  struct Buffers {
    std::vector<std::uint8_t> bytes;
    ShapedDecoder decoder;
  };

  void check(bool good, std::int64_t sample, const ShapedDecoder& decoder) const {
    require(good, ErrorCode::data_damaged, "{}: sample {} cannot be decoded: {}", file_.info.path,
            file_.info.first_sample + sample, decoder.reason());
  }

  void read_as_stored(std::int64_t sample, ShapedDecoder& decoder, std::span<std::uint8_t> image) const {
    require(decoder.height() == file_.info.height && decoder.width() == file_.info.width, ErrorCode::data_damaged,
            "{}: sample {} has {} x {} pixels (height, width), but /sizes contains {} x {}", file_.info.path,
            file_.info.first_sample + sample, decoder.height(), decoder.width(), file_.info.height, file_.info.width);
    check(decoder.read_as_stored(file_.info.channels, image), sample, decoder);
  }

  SampleFile file_;
  std::vector<std::uint64_t> offsets_;  // in /images: where each sample begins, and where the last one ends
  ImageShaping shaping_;
  mutable Pool<Buffers> pool_;
};

/// Sets image_size to 0 if images are returned as stored. This includes the case that all of them already have that
/// size and no crops are requested.
ImageShaping resolved(const ImageSetInfo& stored, ImageShaping shaping) {
  require(shaping.image_size > 0 || stored.height > 0, ErrorCode::model_mismatch,
          "the images of {} have several sizes: set data.image_size", stored.path);
  require(shaping.image_size > 0 || !shaping.resized_crop || stored.height == stored.width, ErrorCode::model_mismatch,
          "the images of {} are not square: set data.image_size", stored.path);
  if (shaping.image_size == 0 && shaping.resized_crop) shaping.image_size = stored.height;
  if (keeps_size(shaping) && stored.height == shaping.image_size && stored.width == shaping.image_size)
    shaping.image_size = 0;
  return shaping;
}

}  // namespace

std::vector<Field> ImageSet::fields() const {
  const ImageSetInfo& set = info();
  constexpr std::uint8_t kNoLabelByte = 0xff;  // -1, byte by byte
  return {{.name = kImageField, .dtype = DType::uint8, .shape = {set.height, set.width, set.channels}},
          {.name = kLabelField, .dtype = DType::int32, .shape = {}, .padding_byte = kNoLabelByte},
          {.name = kSampleIdField, .dtype = DType::int32, .shape = {}}};
}

void ImageSet::read(std::int64_t sample, std::uint32_t epoch, std::span<const std::span<std::byte>> targets) const {
  const std::span<std::byte> image = targets[0];
  std::int32_t label = 0;
  read_image(sample, epoch, {reinterpret_cast<std::uint8_t*>(image.data()), image.size()}, label);
  const std::uint32_t id = id_of(info(), sample);
  std::memcpy(targets[1].data(), &label, sizeof(label));
  std::memcpy(targets[2].data(), &id, sizeof(id));
}

std::unique_ptr<ImageSet> shape_image_set(std::unique_ptr<ImageSet> set, const ImageShaping& shaping) {
  const ImageShaping resolved_shaping = resolved(set->info(), shaping);
  if (resolved_shaping.image_size == 0) return set;
  return std::make_unique<ShapedSet>(std::move(set), resolved_shaping);
}

std::unique_ptr<ImageSet> open_image_set(const std::string& path, std::int64_t start, std::int64_t end,
                                         const ImageShaping& shaping) {
  SampleFile file(path, start, end);
  if (file.layout.encoded) {
    const ImageShaping resolved_shaping = resolved(file.info, shaping);
    if (!file.layout.encoded->is_decoded) return std::make_unique<EncodedSet>(std::move(file), resolved_shaping);
    if (resolved_shaping.image_size == 0) return std::make_unique<DecodedSet>(std::move(file));
    return make_region_set(std::move(file), resolved_shaping);
  }
  return shape_image_set(std::make_unique<DecodedSet>(std::move(file)), shaping);
}

}  // namespace lockstep::data
