// Parts of data sets of images or text that libhdf5 writes from a fuzzer's bytes (hdf5_recipe.h), and their user
// blocks.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "test/fuzz/hdf5_recipe.h"

namespace lockstep::fuzz {

/// An attribute, with what the input requests. `good` writes the content that a good file has.
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

/// `other`: another data set, to which `name` may become a link.
inline void make_data_set(hid_t file, const std::string& name, hid_t type, const std::vector<hsize_t>& dims, Input& in,
                          const std::string& other) {
  switch (in.below(8)) {
    case 1:
      return;  // left out
    case 2:
      H5Lcreate_soft(other.c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 3:
      H5Lcreate_external("elsewhere.h5", other.c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
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

/// Attributes of the root group that a good file may have.
class Attributes {
 public:
  Attributes(hid_t file, Input& in) : root_(H5Gopen2(file, "/", H5P_DEFAULT)), in_(in) {}
  void words(const std::string& name, const std::vector<const char*>& texts) {
    attribute(root_.get(), name, in_, [&] {
      const Hdf5Id type(H5Tcopy(H5T_C_S1));
      H5Tset_size(type.get(), H5T_VARIABLE);
      write_attribute(root_.get(), name, type.get(), texts, texts.size() == 1);
    });
  }
  void integer(const std::string& name, std::int64_t value) {
    attribute(root_.get(), name, in_,
              [&] { write_attribute<std::int64_t>(root_.get(), name, H5T_NATIVE_INT64, {value}, true); });
  }
  void floats(const std::string& name) {
    attribute(root_.get(), name, in_, [&] {
      write_attribute<float>(root_.get(), name, H5T_NATIVE_FLOAT, {0.5f, 0.25f, 0.125f}, false);
    });
  }

 private:
  Hdf5Id root_;
  Input& in_;
};

/// Changes up to 7 of the `n_fields` u64 words of a user block (data/user_block.h) after its magic number, and usually
/// corrects its checksum, which is the last word.
inline void change_user_block(std::string& file, std::uint8_t n_fields, Input& in) {
  const std::size_t hash_at = 8 * (n_fields - 1u);
  for (std::uint8_t n = in.below(8); n > 0; --n) {
    const std::size_t word = 2u + in.below(static_cast<std::uint8_t>(n_fields - 2));
    const auto value = in.take<std::uint64_t>();
    std::memcpy(file.data() + 8 * word, &value, sizeof value);
  }
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(file)).first(hash_at));
  if (in.below(8) != 7) std::memcpy(file.data() + hash_at, &hash, sizeof hash);
}

inline std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string{std::istreambuf_iterator<char>(in), {}};
}

}  // namespace lockstep::fuzz
