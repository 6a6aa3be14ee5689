// also: Corpus.checkpoint
// Fuzz target: checkpoints. Input: a recipe (hdf5_recipe.h) for the HDF5 part, which gets checksums and a user block as
// in a save. At the end of the input are replacement bytes for the user block, whose hash is then recomputed.
#include "checkpoint/checkpoint.h"

#include <nlohmann/json.hpp>

#include "checkpoint/compare.h"
#include "checkpoint/reader.h"
#include "checkpoint/user_block.h"
#include "test/fuzz/hdf5_recipe.h"

namespace {

using namespace lockstep;
using namespace lockstep::fuzz;

constexpr std::size_t kOwnHashAt = 4088;  // in the user block (user_block.h)

void make_state(hid_t file, Input& in) {
  const std::uint8_t kind = in.below(5);
  if (kind == 1) return;
  const Hdf5Id group(H5Gcreate2(file, "/state", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  if (kind == 2) return a_text(group.get(), "json", in);
  if (kind == 3) return some_numbers(group.get(), "json", in);
  const std::string text = kind == 4 ? in.text(120) : R"({"step": 7, "model": {"family": "resnet"}})";
  const Hdf5Id type(H5Tcopy(H5T_C_S1)), scalar(H5Screate(H5S_SCALAR));
  H5Tset_size(type.get(), std::max<std::size_t>(1, text.size()));
  const Hdf5Id attribute(H5Acreate2(group.get(), "json", type.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT));
  H5Awrite(attribute.get(), type.get(), text.empty() ? " " : text.data());
}

void make_tensor(hid_t file, Input& in) {
  const std::array<std::string, 6> names{"/parameters/fc.bias",
                                         "/parameters/conv1.weight",
                                         "/optimizer/momentum/fc.bias",
                                         "/statistics/bn1.running_mean",
                                         "/loose",
                                         "/a/b/c/d"};
  std::string name = names[in.below(names.size())];
  switch (in.below(8)) {
    case 1:
      name = "/parameters/" + in.text(20);
      break;
    case 2:
      H5Lcreate_soft(names[0].c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 3:
      H5Lcreate_external("/dev/null", "/x", file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 4: {  // a group that contains itself, more than once
      const Hdf5Id group(H5Gcreate2(file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      for (std::uint8_t i = 0; group && i <= in.below(4); ++i)
        H5Lcreate_hard(group.get(), ".", group.get(), std::to_string(i).c_str(), H5P_DEFAULT, H5P_DEFAULT);
      return;
    }
    case 5:
      H5Lcreate_hard(file, names[0].c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 6: {  // each of its groups contains the next one several times: very many paths
      for (int level = 0; level < 14; ++level) {
        const std::string here = "/level" + std::to_string(level), next = "/level" + std::to_string(level + 1);
        const Hdf5Id group(H5Gopen2(file, here.c_str(), H5P_DEFAULT));
        const Hdf5Id made(group ? -1 : H5Gcreate2(file, here.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        const Hdf5Id below(H5Gcreate2(file, next.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        for (int i = 0; i < 4; ++i)
          H5Lcreate_hard(file, next.c_str(), file, (here + "/" + std::to_string(i)).c_str(), H5P_DEFAULT, H5P_DEFAULT);
      }
      return;
    }
    default:
      break;
  }
  const hsize_t n = 1 + in.below(8);
  const Hdf5Id set = a_data_set(file, name, H5T_IEEE_F32LE, {n}, in);
  if (!set) return;
  std::vector<float> values(n, static_cast<float>(in.take<std::int8_t>()));
  const Hdf5Id space(H5Dget_space(set.get()));
  const bool plain = H5Sget_simple_extent_npoints(space.get()) == static_cast<hssize_t>(n);
  if (plain) H5Dwrite(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  const std::uint8_t kind = in.below(4);
  if (kind == 1) return;
  if (kind == 2) return a_text(set.get(), "xxh3", in);
  if (kind == 3) return some_numbers(set.get(), "xxh3", in);
  const std::uint64_t hash = checkpoint::digest_bytes(std::as_bytes(std::span(values)));
  const Hdf5Id scalar(H5Screate(H5S_SCALAR));
  const Hdf5Id attribute(H5Acreate2(set.get(), "xxh3", H5T_STD_U64LE, scalar.get(), H5P_DEFAULT, H5P_DEFAULT));
  H5Awrite(attribute.get(), H5T_NATIVE_UINT64, &hash);
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The user block that a save would write, with the changes that the input requests.
void write_user_block(std::string& bytes, Input& in) {
  const auto all = std::as_bytes(std::span(bytes));
  const auto behind = all.subspan(checkpoint::kUserBlockBytes);
  checkpoint::UserBlock block;
  block.version = checkpoint::kFormatVersion;
  block.file_bytes = bytes.size();
  block.digest = checkpoint::digest_bytes(behind);
  block.block_hashes = {hash_bytes(behind)};
  if (in.below(2) == 1) {  // the metadata is a part of it
    block.metadata_end = checkpoint::kUserBlockBytes + in.take<std::uint16_t>() % (behind.size() + 1);
    block.metadata_hash = checkpoint::digest_bytes(behind.first(block.metadata_end - checkpoint::kUserBlockBytes));
  }
  const auto encoded = checkpoint::encode(block);
  std::memcpy(bytes.data(), encoded.data(), encoded.size());
  for (std::uint8_t n = in.below(8); n > 0; --n) {
    const std::size_t at = 8 + in.below(72);
    bytes[at] = static_cast<char>(in.take<std::uint8_t>());
  }
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(bytes)).first(kOwnHashAt));
  if (in.below(8) != 7) std::memcpy(bytes.data() + kOwnHashAt, &hash, sizeof hash);
  if (in.below(4) == 3) bytes.resize(in.take<std::uint16_t>() % (bytes.size() + 64));
  if (in.below(4) == 3 && !bytes.empty()) bytes[in.take<std::uint16_t>() % bytes.size()] ^= 1;  // after all checksums
}

}  // namespace

FUZZ_TARGET(checkpoint) {
  static const ScratchFile file(".h5");
  Input in(data, size);
  {
    const Hdf5Id hdf5 = new_hdf5_file(file.path(), checkpoint::kUserBlockBytes);
    make_state(hdf5.get(), in);
    for (std::uint8_t n = in.below(5); n > 0; --n) make_tensor(hdf5.get(), in);
  }
  std::string bytes = bytes_of(file.path());
  write_user_block(bytes, in);
  file.write(bytes);

  no_crash([&] {
    checkpoint::Reader reader(file.path());
    const std::vector<checkpoint::TensorEntry> tensors = reader.tensors();
    reader.step();
    for (const checkpoint::TensorEntry& tensor : tensors) {
      if (tensor.size_bytes() > bytes.size()) std::abort();
      std::vector<float> values(static_cast<std::size_t>(tensor.shape.n_elements()));
      no_crash([&] { reader.read(tensor, values); });
    }
  });
  no_crash([&] { checkpoint::load_all(file.path()); });
  no_crash([&] { checkpoint::load(file.path(), {{"/parameters/fc.bias", Shape{3}, [](std::span<const float>) {}}}); });
  no_crash([&] { checkpoint::verify(file.path()); });
  no_crash([&] { checkpoint::compare(file.path(), file.path()); });
  return 0;
}
