#include "hdf5/writer.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "hdf5/library.h"

namespace lockstep::hdf5 {
namespace {

hid_t file_type(const std::string& name) {
  if (name == "uint8") return H5T_STD_U8LE;
  if (name == "uint16") return H5T_STD_U16LE;
  if (name == "int32") return H5T_STD_I32LE;
  if (name == "uint32") return H5T_STD_U32LE;
  if (name == "uint64") return H5T_STD_U64LE;
  if (name == "float32") return H5T_IEEE_F32LE;
  fail(ErrorCode::internal, "there is no HDF5 type for {}", name);
}

Id variable_text_type() {
  Id type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

constexpr ErrorCodes kCodes{.of_system = ErrorCode::system_call, .of_library = ErrorCode::library};

}  // namespace

struct Writer::State {
  std::string path;  // for messages
  Id file;
  struct Set {
    Id id;
    std::vector<hsize_t> dims;
    // For a chunked data set: the chunk that is being filled.
    std::uint64_t chunk_rows = 0, row_bytes = 0;
    std::uint64_t n_rows = 0;  // received so far
    std::vector<std::uint8_t> chunk;
  };
  std::map<std::string, Set> sets;

  Id id(hid_t value, const std::string& doing) const { return check_id(value, kCodes, path, doing); }
  void check_status(herr_t status, const std::string& doing) const { check(status, kCodes, path, doing); }

  /// Creation properties of a new object, which must not contain the time.
  Id creation_properties(hid_t kind, const std::string& doing) const {
    Id list = id(H5Pcreate(kind), doing);
    check_status(H5Pset_obj_track_times(list.get(), false), doing);
    return list;
  }

  Id space_of(const std::vector<hsize_t>& dims, const std::string& doing) const {
    return id(
        dims.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
        doing);
  }

  void create_group(const std::string& group) const {
    const std::string doing = "creating the group " + group;
    const Id properties = creation_properties(H5P_GROUP_CREATE, doing);
    id(H5Gcreate2(file.get(), group.c_str(), H5P_DEFAULT, properties.get(), H5P_DEFAULT), doing);
  }

  void create_parent_groups(const std::string& object) const {
    for (auto slash = object.find('/', 1); slash != std::string::npos; slash = object.find('/', slash + 1)) {
      const std::string group = object.substr(0, slash);
      const htri_t exists = H5Lexists(file.get(), group.c_str(), H5P_DEFAULT);
      check_status(exists, "looking for " + group);
      if (exists == 0) create_group(group);
    }
  }

  Id create(const std::string& name, const std::string& type, Set& set) const {
    const std::string doing = "creating the data set " + name;
    const Id space = space_of(set.dims, doing);
    const Id properties = creation_properties(H5P_DATASET_CREATE, doing);
    if (set.chunk_rows > 0) {
      std::vector<hsize_t> chunk = set.dims;
      chunk[0] = set.chunk_rows;
      check_status(H5Pset_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data()), doing);
      // With early allocation, chunks would follow each other without alignment.
      check_status(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_INCR), doing);
    } else {
      check_status(H5Pset_layout(properties.get(), H5D_CONTIGUOUS), doing);
      check_status(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY), doing);
    }
    check_status(H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER), doing);
    return id(
        H5Dcreate2(file.get(), name.c_str(), file_type(type), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
        doing);
  }

  void fill_chunks(const std::string& name, Set& set, const std::uint8_t* rows, std::uint64_t n) {
    while (n > 0) {
      const std::uint64_t row = set.n_rows % set.chunk_rows, n_copied = std::min(n, set.chunk_rows - row);
      std::memcpy(set.chunk.data() + row * set.row_bytes, rows, n_copied * set.row_bytes);
      rows += n_copied * set.row_bytes;
      n -= n_copied;
      set.n_rows += n_copied;
      if (row + n_copied == set.chunk_rows || set.n_rows == set.dims[0]) write_chunk(name, set);
    }
  }

  /// Writes a full chunk, or the last one, whose rows are followed by zeros.
  void write_chunk(const std::string& name, Set& set) {
    const std::uint64_t chunk = (set.n_rows - 1) / set.chunk_rows;
    std::vector<hsize_t> first(set.dims.size(), 0);
    first[0] = chunk * set.chunk_rows;
    check_status(H5Dwrite_chunk(set.id.get(), H5P_DEFAULT, 0, first.data(), set.chunk.size(), set.chunk.data()),
                 fmt::format("writing chunk {} of /{}", chunk, name));
    std::ranges::fill(set.chunk, std::uint8_t{0});
  }

  void write_attribute(hid_t object, const std::string& name, hid_t stored, hid_t memory,
                       const std::vector<hsize_t>& dims, const void* data) const {
    const std::string doing = fmt::format("writing the attribute '{}'", name);
    const Id space = space_of(dims, doing);
    const Id attribute = id(H5Acreate2(object, name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT), doing);
    check_status(H5Awrite(attribute.get(), memory, data), doing);
  }
};

Writer::Writer(const std::string& path, const WriterOptions& options) : state_(std::make_unique<State>()) {
  start();
  state_->path = options.name.empty() ? path : options.name;
  const State& s = *state_;
  const auto [alignment_bytes, chunk_bytes] = options.placement;
  require(chunk_bytes == 0 || options.format == FileFormat::v110, ErrorCode::internal,
          "{}: chunks need the file format of HDF5 1.10", path);
  const Id creation = s.id(H5Pcreate(H5P_FILE_CREATE), "preparing to create it");
  // HDF5 aligns relative to the end of the user block, whose size must be a multiple of the alignment.
  s.check_status(H5Pset_userblock(creation.get(), std::max(options.user_block_bytes, alignment_bytes)),
                 "choosing its user block");
  const Id access = access_properties(path);
  s.check_status(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "preparing to create it");
  if (alignment_bytes > 0)
    s.check_status(
        H5Pset_alignment(access.get(), chunk_bytes == 0 ? alignment_bytes : std::min(chunk_bytes, alignment_bytes),
                         alignment_bytes),
        "choosing its alignment");
  // A fixed version of the file format, so that a newer library writes the same bytes. In this version, the index of
  // the chunks is one contiguous array instead of a tree whose nodes lie between the chunks.
  if (options.format == FileFormat::v110) {
    s.check_status(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), "choosing the file format");
    s.check_status(H5Pset_obj_track_times(creation.get(), false), "choosing the file format");
  }
  // Small chunks are not collected in blocks: each is stored directly after the previous one.
  if (chunk_bytes > 0) s.check_status(H5Pset_small_data_block_size(access.get(), 0), "choosing the file format");
  if (options.metadata_block_bytes > 0)
    s.check_status(H5Pset_meta_block_size(access.get(), options.metadata_block_bytes), "choosing the file format");
  state_->file = s.id(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), "creating it");
}

Writer::~Writer() {
  // HDF5 crashes when it closes a file that it failed to write. Such a file is not needed, so it stays open until the
  // process ends, and start() has made sure that HDF5 does not close it then.
  for (auto& [name, set] : state_->sets) set.id.release();
  state_->file.release();
}

void Writer::create_group(const std::string& path) { state_->create_group(path); }

void Writer::create_dataset(const std::string& name, const std::string& type, const std::vector<std::uint64_t>& dims,
                            std::uint64_t chunk_rows) {
  State::Set set;
  set.dims.assign(dims.begin(), dims.end());
  if (chunk_rows > 0) {
    require(type == "uint8", ErrorCode::internal, "{}: only bytes are written in chunks, not {}", state_->path, type);
    set.chunk_rows = chunk_rows;
    set.row_bytes = 1;
    for (std::size_t i = 1; i < dims.size(); ++i) set.row_bytes *= dims[i];
    set.chunk.resize(chunk_rows * set.row_bytes);
  }
  set.id = state_->create(name, type, set);
  state_->sets[name] = std::move(set);
}

void Writer::write_rows(const std::string& name, std::uint64_t first, std::uint64_t n, const void* rows) {
  if (n == 0) return;
  State& s = *state_;
  auto& set = s.sets.at(name);
  if (set.chunk_rows > 0) {
    require(first == set.n_rows && n <= set.dims[0] - first, ErrorCode::internal,
            "{}: rows {} to {} of /{} do not follow row {}", s.path, first, first + n, name, set.n_rows);
    return s.fill_chunks(name, set, static_cast<const std::uint8_t*>(rows), n);
  }
  const std::string doing = fmt::format("writing rows {} to {} of /{}", first, first + n, name);
  std::vector<hsize_t> start(set.dims.size(), 0), count = set.dims;
  start[0] = first;
  count[0] = n;
  const Id file_space = s.id(H5Dget_space(set.id.get()), doing);
  s.check_status(H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
                 doing);
  const Id memory_space = s.space_of(count, doing);
  const Id type = s.id(H5Dget_type(set.id.get()), doing);
  const Id native = s.id(H5Tget_native_type(type.get(), H5T_DIR_ASCEND), doing);
  s.check_status(H5Dwrite(set.id.get(), native.get(), memory_space.get(), file_space.get(), H5P_DEFAULT, rows), doing);
}

std::uint64_t Writer::reserve_dataset(const std::string& path, const std::string& type,
                                      const std::vector<std::uint64_t>& dims) {
  const State& s = *state_;
  s.create_parent_groups(path);
  State::Set set;
  set.dims.assign(dims.begin(), dims.end());
  const Id created = s.create(path, type, set);
  const haddr_t offset = H5Dget_offset(created.get());
  require(offset != HADDR_UNDEF, ErrorCode::library, "HDF5 allocated no place in the file for {}", path);
  return offset;
}

void Writer::attribute(const std::string& name, const std::string& text) {
  const Id type = variable_text_type();
  const char* pointer = text.c_str();
  state_->write_attribute(state_->file.get(), name, type.get(), type.get(), {}, &pointer);
}

void Writer::attribute(const std::string& name, const std::vector<std::string>& texts) {
  const Id type = variable_text_type();
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  state_->write_attribute(state_->file.get(), name, type.get(), type.get(), {pointers.size()}, pointers.data());
}

void Writer::attribute(const std::string& name, std::int64_t integer) {
  state_->write_attribute(state_->file.get(), name, H5T_STD_I64LE, H5T_NATIVE_INT64, {}, &integer);
}

void Writer::attribute(const std::string& name, std::span<const float> floats) {
  state_->write_attribute(state_->file.get(), name, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {floats.size()}, floats.data());
}

void Writer::fixed_text(const std::string& object, const std::string& name, const std::string& text) {
  const State& s = *state_;
  const std::string doing = fmt::format("writing the attribute '{}' of {}", name, object);
  const Id type = s.id(H5Tcopy(H5T_C_S1), doing);
  s.check_status(H5Tset_size(type.get(), text.size()), doing);
  s.check_status(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), doing);
  s.check_status(H5Tset_cset(type.get(), H5T_CSET_UTF8), doing);
  const Id owner = s.id(H5Oopen(s.file.get(), object.c_str(), H5P_DEFAULT), doing);
  s.write_attribute(owner.get(), name, type.get(), type.get(), {}, text.data());
}

void Writer::unsigned_integer(const std::string& object, const std::string& name, std::uint64_t value) {
  const State& s = *state_;
  const std::string doing = fmt::format("writing the attribute '{}' of {}", name, object);
  const Id owner = s.id(H5Oopen(s.file.get(), object.c_str(), H5P_DEFAULT), doing);
  const htri_t exists = H5Aexists(owner.get(), name.c_str());
  s.check_status(exists, doing);
  if (exists == 0) return s.write_attribute(owner.get(), name, H5T_STD_U64LE, H5T_NATIVE_UINT64, {}, &value);
  // Not H5Aopen_by_name: HDF5 1.10.8 cannot write through the identifier that it returns.
  const Id attribute = s.id(H5Aopen(owner.get(), name.c_str(), H5P_DEFAULT), doing);
  s.check_status(H5Awrite(attribute.get(), H5T_NATIVE_UINT64, &value), doing);
}

void Writer::close() {
  State& s = *state_;
  for (auto& [name, set] : s.sets) s.check_status(H5Dclose(set.id.release()), "closing /" + name);
  s.sets.clear();
  s.check_status(H5Fclose(s.file.release()), "writing it");
}

}  // namespace lockstep::hdf5
