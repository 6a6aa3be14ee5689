// also: Corpus.image_file
// Fuzz target: image sets. First byte of the input: 0: a recipe (hdf5_recipe.h) of the HDF5 part of decoded images, 4:
// of JPEG images, each with the user block that import would write; otherwise a good file (5: in chunks) with other
// numbers in its user block, whose checksum is recomputed, and other bytes in its labels.
#include "data/image_file.h"

#include "data/image_set.h"
#include "hdf5/reader.h"
#include "test/fuzz/hdf5_recipe.h"

namespace {

using namespace lockstep;
using namespace lockstep::fuzz;

constexpr std::uint8_t kBlockFields = 10, kChunkedBlockFields = 29;  // u64 words (data/user_block.h)

/// `good` writes the content of a good file.
template <typename Good>
void attribute(hid_t root, const std::string& name, Input& in, Good good) {
  switch (in.below(4)) {
    case 0:
      return good();
    case 1:
      return;  // left out
    case 2:
      return a_text(root, name, in);
    default:
      return some_numbers(root, name, in);
  }
}

template <typename T>
void write_attribute(hid_t root, const std::string& name, hid_t type, const std::vector<T>& values, bool scalar) {
  const hsize_t n = values.size();
  const Hdf5Id space(scalar ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &n, nullptr));
  const Hdf5Id id(H5Acreate2(root, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  H5Awrite(id.get(), type, values.data());
}

void make_data_set(hid_t file, const std::string& name, hid_t type, const std::vector<hsize_t>& dims, Input& in) {
  switch (in.below(8)) {
    case 1:
      return;  // left out
    case 2:
      H5Lcreate_soft(name == "images" ? "/labels" : "/images", file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 3:
      H5Lcreate_external("elsewhere.h5", "/images", file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 4: {
      const Hdf5Id group(H5Gcreate2(file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      return;
    }
    default:
      break;
  }
  const Hdf5Id set = a_data_set(file, name, type, dims, in);
  const std::string text = in.text(24);
  std::vector<std::int32_t> values(4096, 0);
  for (std::size_t i = 0; i < text.size(); ++i) values[i] = text[i];
  const Hdf5Id space(set ? H5Dget_space(set.get()) : -1);
  if (space && H5Sget_simple_extent_npoints(space.get()) <= 4096 && !text.empty())
    H5Dwrite(set.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
}

void make_hdf5_part(const std::string& path, Input& in, bool jpeg) {
  const Hdf5Id file = new_hdf5_file(path, hdf5::kUserBlockBytes);
  const Hdf5Id root(H5Gopen2(file.get(), "/", H5P_DEFAULT));
  const hsize_t n = 1 + in.below(4);
  make_data_set(file.get(), "images", H5T_STD_U8LE, jpeg ? std::vector<hsize_t>{64} : std::vector<hsize_t>{n, 2, 2, 3},
                in);
  make_data_set(file.get(), "labels", H5T_STD_I32LE, {n}, in);
  if (jpeg) {
    make_data_set(file.get(), "offsets", H5T_STD_U64LE, {n + 1}, in);
    make_data_set(file.get(), "sizes", H5T_STD_I32LE, {n, 2}, in);
  }
  const auto words = [&](const std::string& name, std::vector<const char*> texts) {
    attribute(root.get(), name, in, [&] {
      const Hdf5Id type(H5Tcopy(H5T_C_S1));
      H5Tset_size(type.get(), H5T_VARIABLE);
      write_attribute(root.get(), name, type.get(), texts, texts.size() == 1);
    });
  };
  const auto integer = [&](const std::string& name, std::int64_t value) {
    attribute(root.get(), name, in,
              [&] { write_attribute<std::int64_t>(root.get(), name, H5T_NATIVE_INT64, {value}, true); });
  };
  const auto floats = [&](const std::string& name) {
    attribute(root.get(), name, in, [&] {
      write_attribute<float>(root.get(), name, H5T_NATIVE_FLOAT, {0.5f, 0.25f, 0.125f}, false);
    });
  };
  words("format", {"lockstep-images"});
  integer("format_version", jpeg ? data::kJpegFormatVersion : data::kImageFormatVersion);
  integer("classes", 2);
  floats("mean");
  floats("std");
  words("class_names", {"cat", "dog"});
  words("split", {"train"});
  words("source", {"a fuzzer"});
  words("images_xxh3", {"0123456789abcdef"});
  words("labels_xxh3", {"0123456789abcdef"});
}

/// The positions of the data sets; if they cannot be located, an empty position, which the reader must detect.
data::UserBlock places_in(const std::string& path) {
  const data::UserBlock nowhere{data::StoredBytes::contiguous({hdf5::kUserBlockBytes, 0}), {hdf5::kUserBlockBytes, 0}};
  try {
    const data::StoredBytes images = data::locate_in_a_row(data::InputFile(path));
    const hdf5::ReaderErrors errors{.unreadable = ErrorCode::data_format, .truncated = ErrorCode::data_truncated};
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
  std::ifstream in(file.path(), std::ios::binary);
  return std::string{std::istreambuf_iterator<char>(in), {}};
}

/// A good file whose user block has other words after its magic number, if the input requests it, and a new checksum.
std::string with_other_user_block(Input& in, bool chunked) {
  static const std::string contiguous_file = make_good_file(0), chunked_file = make_good_file(12);
  std::string bytes = chunked ? chunked_file : contiguous_file;
  const std::uint8_t n_fields = chunked ? kChunkedBlockFields : kBlockFields;
  const std::size_t hash_at = 8 * (n_fields - 1u);
  std::uint64_t labels_offset = 0;
  std::memcpy(&labels_offset, bytes.data() + 48, sizeof labels_offset);
  for (std::uint8_t n = in.below(8); n > 0; --n) {
    const std::size_t word = 2u + in.below(static_cast<std::uint8_t>(n_fields - 2));
    const auto value = in.take<std::uint64_t>();
    std::memcpy(bytes.data() + 8 * word, &value, sizeof value);
  }
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(bytes)).first(hash_at));
  if (in.below(8) != 7) std::memcpy(bytes.data() + hash_at, &hash, sizeof hash);
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
  if (kind != 0 && kind != 4) {
    const std::string bytes = with_other_user_block(in, kind == 5);
    if (bytes.size() >= 16) file.write(bytes);  // shorter has no magic and goes to the limited child
    if (bytes.size() >= 16) read_all_of(file.path());
    return 0;
  }
  make_hdf5_part(file.path(), in, kind == 4);
  try {
    data::write_user_block(file.path(), places_in(file.path()));
  } catch (const Error&) {
    return 0;  // images and labels at one position: never written by import
  }
  read_all_of(file.path());
  return 0;
}
