// HDF5 files that libhdf5 writes from a fuzzer's bytes: well-formed, with unexpected types, shapes, layouts, links and
// values. This fuzzes our code, not libhdf5: its faults with damaged bytes are known, and it sees such bytes only in a
// limited child process. A zero byte always requests what a good file has.
#pragma once

#include <hdf5.h>

#include <array>
#include <string>
#include <vector>

#include "lockstep/handle.h"
#include "test/fuzz/fuzz.h"

namespace lockstep::fuzz {

struct Hdf5Traits {
  using Type = hid_t;
  static hid_t null() { return -1; }
  static void close(hid_t id) { H5Idec_ref(id); }
};
using Hdf5Id = Handle<Hdf5Traits>;

inline Hdf5Id new_hdf5_file(const std::string& path, hsize_t user_block_bytes) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const Hdf5Id creation(H5Pcreate(H5P_FILE_CREATE));
  H5Pset_userblock(creation.get(), user_block_bytes);
  const Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  return Hdf5Id(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()));
}

inline hid_t a_number_type(Input& in) {
  const std::array<hid_t, 9> types{H5T_STD_I64LE, H5T_STD_U8LE,  H5T_STD_I32LE, H5T_IEEE_F32LE, H5T_IEEE_F64LE,
                                   H5T_STD_I32BE, H5T_STD_U64LE, H5T_STD_I8LE,  H5T_STD_REF_OBJ};
  return types[in.below(types.size())];
}

inline Hdf5Id a_text_type(Input& in) {
  Hdf5Id type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), in.below(2) == 0 ? H5T_VARIABLE : std::size_t{1} + in.below(40));
  return type;
}

/// No value, one value, or up to 4 dimensions with sizes of up to 8.
inline Hdf5Id a_space(Input& in) {
  const std::uint8_t rank = in.below(6);
  if (rank == 0) return Hdf5Id(H5Screate(H5S_SCALAR));
  if (rank == 5) return Hdf5Id(H5Screate(H5S_NULL));
  std::array<hsize_t, 4> dims{};
  for (std::uint8_t i = 0; i < rank; ++i) dims[i] = in.below(9);
  return Hdf5Id(H5Screate_simple(rank, dims.data(), nullptr));
}

inline void a_text(hid_t object, const std::string& name, Input& in) {
  const Hdf5Id type = a_text_type(in), space = a_space(in);
  const Hdf5Id attribute(H5Acreate2(object, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute || in.below(4) == 3) return;  // 3: never written
  const auto n = static_cast<std::size_t>(std::max<hssize_t>(0, H5Sget_simple_extent_npoints(space.get())));
  const std::string text = in.text(80);
  if (H5Tis_variable_str(type.get()) > 0) {
    const std::vector<const char*> pointers(n, text.c_str());
    H5Awrite(attribute.get(), type.get(), pointers.data());
  } else {
    std::string bytes(n * H5Tget_size(type.get()), '\0');
    for (std::size_t i = 0; i < bytes.size() && !text.empty(); ++i) bytes[i] = text[i % text.size()];
    H5Awrite(attribute.get(), type.get(), bytes.data());
  }
}

inline void some_numbers(hid_t object, const std::string& name, Input& in) {
  const hid_t type = a_number_type(in);
  const Hdf5Id space = a_space(in);
  const Hdf5Id attribute(H5Acreate2(object, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute) return;
  const auto n = static_cast<std::size_t>(std::max<hssize_t>(0, H5Sget_simple_extent_npoints(space.get())));
  std::vector<std::uint8_t> bytes(n * H5Tget_size(type));
  const std::uint64_t value = in.take<std::uint64_t>();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = reinterpret_cast<const std::uint8_t*>(&value)[i % 8];
  H5Awrite(attribute.get(), type, bytes.data());
}

/// A data set of any type, shape and layout; 0: contiguous and allocated. `dims` has at least the expected rank.
inline Hdf5Id a_data_set(hid_t file, const std::string& name, hid_t wanted_type, std::vector<hsize_t> dims, Input& in) {
  const Hdf5Id creation(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
  hid_t type = wanted_type;
  switch (in.below(8)) {
    case 1:
      type = a_number_type(in);
      break;
    case 2:  // other dimensions, or none
      dims.resize(in.below(6));
      for (hsize_t& d : dims) d = in.below(16);  // at most 8 MiB
      break;
    case 3:  // dimensions that no file has: nothing is allocated
      dims.resize(in.below(6));
      for (hsize_t& d : dims) d = in.take<std::uint64_t>();
      H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_LATE);
      break;
    case 4:
      H5Pset_layout(creation.get(), H5D_COMPACT);
      break;
    case 5: {  // chunks of one element, or of whole rows, whose index is an array or absent
      std::vector<hsize_t> chunk(dims.size(), 1);
      if (const std::uint8_t rows = in.below(4); rows > 0) {
        chunk = dims;
        chunk[0] = rows;
        if (in.below(2) == 0) H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_INCR);
        if (in.below(4) == 3) H5Pset_fletcher32(creation.get());
      }
      H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
      break;
    }
    case 6:
      H5Pset_external(creation.get(), "/dev/null", 0, H5F_UNLIMITED);
      break;
    case 7:
      H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_LATE);
      break;
  }
  const Hdf5Id links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links.get(), 1);
  const Hdf5Id space(dims.empty() ? H5Screate(H5S_SCALAR)
                                  : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
  return Hdf5Id(H5Dcreate2(file, name.c_str(), type, space.get(), links.get(), creation.get(), H5P_DEFAULT));
}

}  // namespace lockstep::fuzz
