// also: Corpus.image_file
// Fuzz target: image sets. The first byte of the input selects what follows. 0, 4 and 6: a recipe (hdf5_recipe.h) for
// the HDF5 part, of decoded images (0), JPEG images (4), or decoded images of several sizes (6), with the user block
// that import would write. Otherwise: a good file (5: in chunks) with other numbers in its user block, whose checksum
// is recomputed, and other bytes in its labels.
#include "data/image_file.h"

#include "data/image_set.h"
#include "hdf5/reader.h"
#include "test/fuzz/data_file_recipe.h"

namespace {

using namespace lockstep;
using namespace lockstep::fuzz;

constexpr std::uint8_t kBlockFields = 10, kChunkedBlockFields = 29;  // u64 words (data/user_block.h)

void make_hdf5_part(const std::string& path, Input& in, std::int64_t version) {
  const bool has_index = version != data::kImageFormatVersion;
  const Hdf5Id file = new_hdf5_file(path, hdf5::kUserBlockBytes);
  const hsize_t n = 1 + in.below(4);
  make_data_set(file.get(), "images", H5T_STD_U8LE,
                has_index ? std::vector<hsize_t>{64} : std::vector<hsize_t>{n, 2, 2, 3}, in, "/labels");
  make_data_set(file.get(), "labels", H5T_STD_I32LE, {n}, in, "/images");
  if (has_index) {
    make_data_set(file.get(), "offsets", H5T_STD_U64LE, {n + 1}, in, "/images");
    make_data_set(file.get(), "sizes", H5T_STD_I32LE, {n, 2}, in, "/images");
  }
  Attributes attributes(file.get(), in);
  attributes.words("format", {"lockstep-images"});
  attributes.integer("format_version", version);
  if (version == data::kPixelsFormatVersion) {
    attributes.integer("channels", 3);
    attributes.words("formats", {data::kPixels});
  }
  attributes.integer("classes", 2);
  attributes.floats("mean");
  attributes.floats("std");
  attributes.words("class_names", {"cat", "dog"});
  attributes.words("split", {"train"});
  attributes.words("source", {"a fuzzer"});
  attributes.words("images_xxh3", {"0123456789abcdef"});
  attributes.words("labels_xxh3", {"0123456789abcdef"});
}

/// The positions of the data sets; if they cannot be located, an empty position, which the reader must detect.
data::UserBlock places_in(const std::string& path) {
  const data::UserBlock nowhere{data::StoredBytes::contiguous({hdf5::kUserBlockBytes, 0}), {hdf5::kUserBlockBytes, 0}};
  try {
    const data::StoredBytes images = data::locate_in_a_row(data::InputFile(path));
    const hdf5::ReaderErrors errors{.unreadable = ErrorCode::data_format, .truncated = ErrorCode::data_damaged};
    const hdf5::DatasetPlace labels = hdf5::Reader(path, errors).dataset("labels");
    return {images, {labels.offset, labels.size_bytes}};
  } catch (const Error&) {
    return nowhere;
  }
}

void read_all_of(const std::string& path) {
  no_crash([&] {
    const data::InputFile file(path);
    const data::ImageFile layout = data::open_image_file(file);
    data::verify_image_file(file, layout, {});
    data::read_labels(file, layout);
    const auto set = data::open_image_set(path, 0, 0, {.image_size = layout.encoded ? 4 : 0});
    std::vector<std::uint8_t> image(set->info().image_bytes());
    std::int32_t label = 0;
    for (const std::int64_t sample : {std::int64_t{0}, set->info().n_samples - 1})
      set->read_image(sample, 0, image, label);
  });
}

std::string make_good_file(std::uint64_t chunk_bytes) {
  const ScratchFile file(".good.h5");
  data::ImageFileWriter writer(file.path(), true, 3, 2, 2, 3, {.alignment_bytes = 0, .chunk_bytes = chunk_bytes});
  const std::vector<std::uint8_t> images(3 * 12, 7);
  const std::vector<std::int32_t> labels{0, 1, 1};
  writer.append(images, labels);
  data::ImageSetInfo info;
  info.split = "test";
  info.classes = 2;
  info.class_names = {"cat", "dog"};
  info.mean = info.stddev = {0.5f, 0.5f, 0.5f};
  writer.finish(info, "a fuzzer");
  return content_of(file.path());
}

/// A good file. If the input requests it, the user block has other words after its magic number, and a new checksum.
std::string with_other_user_block(Input& in, bool chunked) {
  static const std::string contiguous_file = make_good_file(0), chunked_file = make_good_file(12);
  std::string bytes = chunked ? chunked_file : contiguous_file;
  std::uint64_t labels_offset = 0;
  std::memcpy(&labels_offset, bytes.data() + 48, sizeof labels_offset);
  change_user_block(bytes, chunked ? kChunkedBlockFields : kBlockFields, in);
  const std::string labels = in.text(12);
  std::memcpy(bytes.data() + labels_offset, labels.data(), labels.size());
  if (in.below(4) == 3) bytes.resize(in.take<std::uint16_t>() % (bytes.size() + 64));
  return bytes;
}

}  // namespace

FUZZ_TARGET(image_file) {
  static const ScratchFile file(".h5");
  Input in(data, size);
  const std::uint8_t kind = in.below(8);
  if (kind != 0 && kind != 4 && kind != 6) {
    const std::string bytes = with_other_user_block(in, kind == 5);
    if (bytes.size() >= 16) file.write(bytes);  // shorter files have no magic number and go to the limited child
    if (bytes.size() >= 16) read_all_of(file.path());
    return 0;
  }
  make_hdf5_part(file.path(), in,
                 kind == 0   ? data::kImageFormatVersion
                 : kind == 4 ? data::kJpegFormatVersion
                             : data::kPixelsFormatVersion);
  try {
    data::write_user_block(file.path(), places_in(file.path()));
  } catch (const Error&) {
    return 0;  // images and labels at the same position: never written by import
  }
  read_all_of(file.path());
  return 0;
}
