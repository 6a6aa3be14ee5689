#include "data/hdf5_file.h"

#include <hdf5.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "lockstep/error.h"
#include "lockstep/handle.h"
#include "lockstep/log.h"

namespace lockstep::data {
namespace {

constexpr std::uint64_t kMaxAttributeElements = 1u << 20;
constexpr std::size_t kMaxTextBytes = 1u << 20;

struct Hdf5Traits {
  using Type = hid_t;
  static Type null() { return H5I_INVALID_HID; }
  static void close(Type id) {
    if (H5Idec_ref(id) < 0) log::warning("HDF5 could not close one of its objects");
  }
};
using Hdf5Id = Handle<Hdf5Traits>;

/// HDF5 prints its error stack by default; here it becomes part of one sentence.
void silence_hdf5() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

/// The innermost description of HDF5's error stack: what really was wrong.
std::string hdf5_reason() {
  std::string reason;
  const auto take = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    auto& text = *static_cast<std::string*>(out);
    if (text.empty() && error->desc) text = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take, &reason);
  return reason.empty() ? "no reason given" : reason;
}

Hdf5Id check_id(hid_t id, ErrorCode code, const std::string& path, const std::string& doing) {
  if (id < 0) fail(code, "{}: {} failed: {}", path, doing, hdf5_reason());
  return Hdf5Id(id);
}

void check(herr_t status, ErrorCode code, const std::string& path, const std::string& doing) {
  if (status < 0) fail(code, "{}: {} failed: {}", path, doing, hdf5_reason());
}

std::string type_name(hid_t type) {
  const std::size_t bits = 8 * H5Tget_size(type);
  const std::string order = bits > 8 && H5Tget_order(type) == H5T_ORDER_BE ? ", big-endian" : "";
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return fmt::format("{}int{}{}", H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "", bits, order);
    case H5T_FLOAT:
      return fmt::format("float{}{}", bits, order);
    case H5T_STRING:
      return "text";
    default:
      return "a type that is neither number nor text";
  }
}

hid_t file_type(const std::string& name) {
  if (name == "uint8") return H5T_STD_U8LE;
  if (name == "int32") return H5T_STD_I32LE;
  if (name == "uint64") return H5T_STD_U64LE;
  fail(ErrorCode::internal, "no HDF5 type for {}", name);
}

std::string layout_name(H5D_layout_t layout) {
  switch (layout) {
    case H5D_CHUNKED:
      return "in chunks";
    case H5D_COMPACT:
      return "compact";
    case H5D_VIRTUAL:
      return "virtual";
    default:
      return "unknown";
  }
}

Hdf5Id text_type() {
  Hdf5Id type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

/// Throws unless samples can be read in place.
void check_layout(const std::string& path, const std::string& name, hid_t creation, Layouts layouts) {
  const H5D_layout_t layout = H5Pget_layout(creation);
  if (layout == H5D_CHUNKED && layouts == Layouts::contiguous_or_chunked) {
    require(H5Pget_nfilters(creation) == 0, ErrorCode::data_format,
            "{}: the data set '/{}' is compressed or goes through another filter; samples are read in place, so it "
            "must not (h5py: create_dataset without compression, shuffle and fletcher32)",
            path, name);
    return;
  }
  require(layout == H5D_CONTIGUOUS && H5Pget_external_count(creation) == 0, ErrorCode::data_format,
          "{}: the data set '/{}' is stored {}; it is read in place, so it must be contiguous in this file (h5py: "
          "create_dataset without chunks and compression)",
          path, name, layout == H5D_CONTIGUOUS ? "in other files" : layout_name(layout));
}

/// Fills the sizes of the chunks; throws unless they hold whole rows.
void take_chunk_shape(const std::string& path, const std::string& name, hid_t creation, std::size_t element_bytes,
                      DatasetPlace& place) {
  std::vector<hsize_t> chunk(place.dims.size());
  check(H5Pget_chunk(creation, static_cast<int>(chunk.size()), chunk.data()), ErrorCode::data_format, path,
        "reading the shape of the chunks of /" + name);
  require(std::equal(chunk.begin() + 1, chunk.end(), place.dims.begin() + 1), ErrorCode::data_format,
          "{}: the chunks of '/{}' have the shape ({}); they must hold whole images of ({})", path, name,
          fmt::join(chunk, ", "), fmt::join(place.dims.begin() + 1, place.dims.end(), ", "));
  place.chunk_rows = chunk[0];
  place.chunk_bytes = element_bytes;
  for (const hsize_t d : chunk)
    require(!__builtin_mul_overflow(place.chunk_bytes, std::uint64_t{d}, &place.chunk_bytes) && place.chunk_bytes > 0,
            ErrorCode::data_format, "{}: the shape ({}) of the chunks of '/{}' is not possible", path,
            fmt::join(chunk, ", "), name);
}

/// True where this HDF5 says where a chunk lies without counting the user block (those before 1.14.4; its issue 3003):
/// tried on a file in memory.
bool chunk_offsets_leave_out_user_block() {
  constexpr hsize_t kUserBlockBytes = 64u << 10;  // more than all that follows
  const hsize_t one[1] = {1}, origin[1] = {0};
  const Hdf5Id creation(H5Pcreate(H5P_FILE_CREATE)), access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_userblock(creation.get(), kUserBlockBytes);
  H5Pset_fapl_core(access.get(), kUserBlockBytes, false);
  const Hdf5Id file(H5Fcreate("in memory", H5F_ACC_TRUNC, creation.get(), access.get()));
  const Hdf5Id chunked(H5Pcreate(H5P_DATASET_CREATE)), space(H5Screate_simple(1, one, nullptr));
  H5Pset_chunk(chunked.get(), 1, one);
  const Hdf5Id set(H5Dcreate2(file.get(), "set", H5T_STD_U8LE, space.get(), H5P_DEFAULT, chunked.get(), H5P_DEFAULT));
  const std::uint8_t value = 1;
  unsigned filters = 0;
  haddr_t offset = HADDR_UNDEF;
  hsize_t size_bytes = 0;
  require(H5Dwrite_chunk(set.get(), H5P_DEFAULT, 0, origin, 1, &value) >= 0 &&
              H5Dget_chunk_info_by_coord(set.get(), origin, &filters, &offset, &size_bytes) >= 0,
          ErrorCode::library, "HDF5 cannot say where a chunk of a file in memory lies: {}", hdf5_reason());
  return offset < kUserBlockBytes;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------

struct Hdf5Reader::State {
  std::string path;
  Hdf5Id file;

  struct Attribute {
    Hdf5Id id, type;
    std::uint64_t n_elements = 0;
  };
  Attribute open(const std::string& name) const {
    const std::string doing = fmt::format("opening the attribute '{}' of the root", name);
    Attribute a;
    a.id = check_id(H5Aopen(file.get(), name.c_str(), H5P_DEFAULT), ErrorCode::data_format, path, doing);
    a.type = check_id(H5Aget_type(a.id.get()), ErrorCode::data_format, path, doing);
    const Hdf5Id space = check_id(H5Aget_space(a.id.get()), ErrorCode::data_format, path, doing);
    const hssize_t n = H5Sget_simple_extent_npoints(space.get());
    require(n >= 0 && static_cast<std::uint64_t>(n) <= kMaxAttributeElements, ErrorCode::data_format,
            "{}: the attribute '{}' has {} elements; at most {} are sensible", path, name, n, kMaxAttributeElements);
    a.n_elements = static_cast<std::uint64_t>(n);
    return a;
  }
  void wants(bool ok, const std::string& name, const std::string& wanted, const Attribute& found) const {
    require(ok, ErrorCode::data_format, "{}: the attribute '{}' must be {}, but holds {} element(s) of {}", path, name,
            wanted, found.n_elements, type_name(found.type.get()));
  }
};

Hdf5Reader::Hdf5Reader(const std::string& path) : state_(std::make_unique<State>()) {
  silence_hdf5();
  state_->path = path;
  const Hdf5Id access = check_id(H5Pcreate(H5P_FILE_ACCESS), ErrorCode::library, path, "H5Pcreate");
#if H5_VERSION_GE(1, 10, 7)
  // Data sets are read-only and often lie on file systems without locks.
  H5Pset_file_locking(access.get(), false, true);
#endif
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
  if (file < 0) {
    const std::string reason = hdf5_reason();
    fail(reason.starts_with("truncated file") ? ErrorCode::data_truncated : ErrorCode::data_format,
         "{} cannot be opened as HDF5: {}", path, reason);
  }
  state_->file = Hdf5Id(file);
}

Hdf5Reader::~Hdf5Reader() = default;

DatasetPlace Hdf5Reader::dataset(const std::string& name, Layouts layouts) const {
  const std::string& path = state_->path;
  const hid_t file = state_->file.get();
  const auto wrong = ErrorCode::data_format;
  require(H5Lexists(file, name.c_str(), H5P_DEFAULT) > 0, wrong, "{} has no data set '/{}'", path, name);
  H5L_info_t link;
  check(H5Lget_info(file, name.c_str(), &link, H5P_DEFAULT), wrong, path, "inspecting /" + name);
  require(link.type == H5L_TYPE_HARD, wrong, "{}: '/{}' is a link to somewhere else; the data must lie in this file",
          path, name);
  const Hdf5Id set = check_id(H5Dopen2(file, name.c_str(), H5P_DEFAULT), wrong, path, "opening the data set /" + name);
  const Hdf5Id creation = check_id(H5Dget_create_plist(set.get()), wrong, path, "inspecting /" + name);
  check_layout(path, name, creation.get(), layouts);

  DatasetPlace place;
  const Hdf5Id type = check_id(H5Dget_type(set.get()), wrong, path, "inspecting the type of /" + name);
  place.type = type_name(type.get());
  const Hdf5Id space = check_id(H5Dget_space(set.get()), wrong, path, "inspecting the shape of /" + name);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  require(rank >= 0 && rank <= H5S_MAX_RANK, wrong, "{}: the shape of '/{}' cannot be read: {}", path, name,
          hdf5_reason());
  std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
  if (rank > 0) check(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr), wrong, path, "reading a shape");
  place.size_bytes = H5Tget_size(type.get());
  for (const hsize_t d : dims) {
    require(!__builtin_mul_overflow(place.size_bytes, std::uint64_t{d}, &place.size_bytes), wrong,
            "{}: the shape of '/{}' has more bytes than a file can hold", path, name);
    place.dims.push_back(d);
  }
  if (H5Pget_layout(creation.get()) == H5D_CHUNKED)
    take_chunk_shape(path, name, creation.get(), H5Tget_size(type.get()), place);
  if (place.size_bytes == 0 || place.chunk_rows > 0) return place;
  const haddr_t offset = H5Dget_offset(set.get());
  require(offset != HADDR_UNDEF, wrong, "{}: the data set '/{}' was created but never written", path, name);
  place.offset = offset;
  return place;
}

std::function<std::uint64_t(std::uint64_t)> Hdf5Reader::chunk_offsets(const std::string& name,
                                                                      const DatasetPlace& place) const {
  const std::string& path = state_->path;
  const auto set = std::make_shared<Hdf5Id>(check_id(H5Dopen2(state_->file.get(), name.c_str(), H5P_DEFAULT),
                                                     ErrorCode::data_format, path, "opening the data set /" + name));
  const Hdf5Id creation =
      check_id(H5Fget_create_plist(state_->file.get()), ErrorCode::data_format, path, "inspecting the file");
  hsize_t user_block_bytes = 0;
  check(H5Pget_userblock(creation.get(), &user_block_bytes), ErrorCode::data_format, path, "inspecting the file");
  if (user_block_bytes > 0) {
    static const bool left_out = chunk_offsets_leave_out_user_block();
    if (!left_out) user_block_bytes = 0;
  }
  return [=](std::uint64_t chunk) {
    std::vector<hsize_t> first(place.dims.size(), 0);
    first[0] = chunk * place.chunk_rows;
    unsigned filters = 0;
    haddr_t offset = HADDR_UNDEF;
    hsize_t size_bytes = 0;
    check(H5Dget_chunk_info_by_coord(set->get(), first.data(), &filters, &offset, &size_bytes), ErrorCode::data_format,
          path, fmt::format("looking up chunk {} of /{}", chunk, name));
    require(offset != HADDR_UNDEF, ErrorCode::data_format, "{}: chunk {} of '/{}' was never written", path, chunk,
            name);
    require(size_bytes == place.chunk_bytes, ErrorCode::data_format, "{}: chunk {} of '/{}' has {} bytes, not {}", path,
            chunk, name, size_bytes, place.chunk_bytes);
    return std::uint64_t{offset} + user_block_bytes;
  };
}

bool Hdf5Reader::has_attribute(const std::string& name) const {
  return H5Aexists(state_->file.get(), name.c_str()) > 0;
}

std::vector<std::string> Hdf5Reader::texts(const std::string& name) const {
  const auto attribute = state_->open(name);
  const hid_t type = attribute.type.get();
  state_->wants(H5Tget_class(type) == H5T_STRING, name, "text", attribute);
  std::vector<std::string> out;
  const std::string doing = fmt::format("reading the attribute '{}'", name);
  const auto n = static_cast<std::size_t>(attribute.n_elements);
  if (H5Tis_variable_str(type) > 0) {
    std::vector<char*> pointers(n, nullptr);
    const Hdf5Id memory(H5Tcopy(type));
    check(H5Aread(attribute.id.get(), memory.get(), pointers.data()), ErrorCode::data_format, state_->path, doing);
    for (char* p : pointers) {
      out.emplace_back(p ? p : "");
      H5free_memory(p);
    }
    return out;
  }
  const std::size_t length = H5Tget_size(type);
  require(length <= kMaxTextBytes && length * n <= kMaxTextBytes, ErrorCode::data_format,
          "{}: the attribute '{}' is longer than {} bytes", state_->path, name, kMaxTextBytes);
  std::vector<char> bytes(length * n);
  check(H5Aread(attribute.id.get(), type, bytes.data()), ErrorCode::data_format, state_->path, doing);
  for (std::size_t i = 0; i < n; ++i) {
    std::string text(bytes.data() + i * length, length);
    out.push_back(text.substr(0, text.find('\0')));
  }
  return out;
}

std::string Hdf5Reader::text(const std::string& name) const {
  std::vector<std::string> all = texts(name);
  require(all.size() == 1, ErrorCode::data_format, "{}: the attribute '{}' must be one text, but holds {}",
          state_->path, name, all.size());
  return all.front();
}

std::int64_t Hdf5Reader::integer(const std::string& name) const {
  const auto attribute = state_->open(name);
  state_->wants(H5Tget_class(attribute.type.get()) == H5T_INTEGER && attribute.n_elements == 1, name,
                "one whole number", attribute);
  std::int64_t value = 0;
  check(H5Aread(attribute.id.get(), H5T_NATIVE_INT64, &value), ErrorCode::data_format, state_->path,
        fmt::format("reading the attribute '{}'", name));
  return value;
}

std::vector<float> Hdf5Reader::floats(const std::string& name) const {
  const auto attribute = state_->open(name);
  const H5T_class_t kind = H5Tget_class(attribute.type.get());
  state_->wants(kind == H5T_FLOAT || kind == H5T_INTEGER, name, "numbers", attribute);
  std::vector<float> values(static_cast<std::size_t>(attribute.n_elements));
  if (values.empty()) return values;
  check(H5Aread(attribute.id.get(), H5T_NATIVE_FLOAT, values.data()), ErrorCode::data_format, state_->path,
        fmt::format("reading the attribute '{}'", name));
  return values;
}

// ---------------------------------------------------------------------------------------------------------------

struct Hdf5Writer::State {
  std::string path;
  Hdf5Id file;
  struct Set {
    Hdf5Id id;
    std::vector<hsize_t> dims;
    // In chunks: the one that is being filled.
    std::uint64_t chunk_rows = 0, row_bytes = 0;
    std::uint64_t n_rows = 0;  // that came so far
    std::vector<std::uint8_t> chunk;
  };
  std::map<std::string, Set> sets;

  void fill_chunks(const std::string& name, Set& set, const std::uint8_t* rows, std::uint64_t n) {
    while (n > 0) {
      const std::uint64_t row = set.n_rows % set.chunk_rows, taken = std::min(n, set.chunk_rows - row);
      std::memcpy(set.chunk.data() + row * set.row_bytes, rows, taken * set.row_bytes);
      rows += taken * set.row_bytes;
      n -= taken;
      set.n_rows += taken;
      if (row + taken == set.chunk_rows || set.n_rows == set.dims[0]) write_chunk(name, set);
    }
  }

  /// The one that is full, or the last; zeros are behind its rows.
  void write_chunk(const std::string& name, Set& set) {
    const std::uint64_t chunk = (set.n_rows - 1) / set.chunk_rows;
    std::vector<hsize_t> first(set.dims.size(), 0);
    first[0] = chunk * set.chunk_rows;
    check(H5Dwrite_chunk(set.id.get(), H5P_DEFAULT, 0, first.data(), set.chunk.size(), set.chunk.data()),
          ErrorCode::system_call, path, fmt::format("writing chunk {} of /{}", chunk, name));
    std::ranges::fill(set.chunk, std::uint8_t{0});
  }

  void write_attribute(const std::string& name, hid_t stored, hid_t memory, std::size_t n, bool scalar,
                       const void* data) {
    const std::string doing = fmt::format("writing the attribute '{}'", name);
    const hsize_t dims[1] = {n};
    const Hdf5Id space =
        check_id(scalar ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, dims, nullptr), ErrorCode::library, path, doing);
    const Hdf5Id id = check_id(H5Acreate2(file.get(), name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                               ErrorCode::library, path, doing);
    check(H5Awrite(id.get(), memory, data), ErrorCode::library, path, doing);
  }
};

Hdf5Writer::Hdf5Writer(const std::string& path, std::uint64_t user_block_bytes, const Placement& placement)
    : state_(std::make_unique<State>()) {
  silence_hdf5();
  state_->path = path;
  const Hdf5Id creation = check_id(H5Pcreate(H5P_FILE_CREATE), ErrorCode::library, path, "H5Pcreate");
  const auto [alignment_bytes, chunk_bytes] = placement;
  // HDF5 aligns from the end of the user block on, and wants that to be a multiple of the alignment.
  check(H5Pset_userblock(creation.get(), std::max(user_block_bytes, alignment_bytes)), ErrorCode::library, path,
        "H5Pset_userblock");
  const Hdf5Id access = check_id(H5Pcreate(H5P_FILE_ACCESS), ErrorCode::library, path, "H5Pcreate");
#if H5_VERSION_GE(1, 10, 7)
  H5Pset_file_locking(access.get(), false, true);
#endif
  if (alignment_bytes > 0)
    check(H5Pset_alignment(access.get(), chunk_bytes == 0 ? alignment_bytes : std::min(chunk_bytes, alignment_bytes),
                           alignment_bytes),
          ErrorCode::library, path, "H5Pset_alignment");
  // The index of the chunks is then one array in one place, not a tree whose nodes lie between the chunks.
  if (chunk_bytes > 0) {
    check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), ErrorCode::library, path,
          "choosing the file format");
    check(H5Pset_obj_track_times(creation.get(), false), ErrorCode::library, path, "H5Pset_obj_track_times");
    // Small chunks are not gathered in blocks: each lies behind the one before.
    check(H5Pset_small_data_block_size(access.get(), 0), ErrorCode::library, path, "H5Pset_small_data_block_size");
  }
  state_->file = check_id(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), ErrorCode::system_call,
                          path, "creating it");
}

Hdf5Writer::~Hdf5Writer() = default;

void Hdf5Writer::create_dataset(const std::string& name, const std::string& type,
                                const std::vector<std::uint64_t>& dims, std::uint64_t chunk_rows) {
  const std::string& path = state_->path;
  const std::string doing = "creating the data set /" + name;
  State::Set set;
  set.dims.assign(dims.begin(), dims.end());
  const Hdf5Id space = check_id(H5Screate_simple(static_cast<int>(dims.size()), set.dims.data(), nullptr),
                                ErrorCode::library, path, doing);
  const Hdf5Id creation = check_id(H5Pcreate(H5P_DATASET_CREATE), ErrorCode::library, path, doing);
  if (chunk_rows > 0) {
    require(type == "uint8", ErrorCode::internal, "{}: only bytes are written in chunks, not {}", path, type);
    set.chunk_rows = chunk_rows;
    set.row_bytes = 1;
    std::vector<hsize_t> chunk = set.dims;
    for (std::size_t i = 1; i < chunk.size(); ++i) set.row_bytes *= chunk[i];
    chunk[0] = chunk_rows;
    set.chunk.resize(chunk_rows * set.row_bytes);
    check(H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data()), ErrorCode::library, path, doing);
    // Allocated early, chunks lie behind each other without alignment.
    check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_INCR), ErrorCode::library, path, doing);
  } else {
    check(H5Pset_layout(creation.get(), H5D_CONTIGUOUS), ErrorCode::library, path, doing);
    check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), ErrorCode::library, path, doing);
  }
  check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), ErrorCode::library, path, doing);
  check(H5Pset_obj_track_times(creation.get(), false), ErrorCode::library, path, doing);
  set.id = check_id(H5Dcreate2(state_->file.get(), name.c_str(), file_type(type), space.get(), H5P_DEFAULT,
                               creation.get(), H5P_DEFAULT),
                    ErrorCode::library, path, doing);
  state_->sets[name] = std::move(set);
}

void Hdf5Writer::write_rows(const std::string& name, std::uint64_t first, std::uint64_t n, const void* rows) {
  if (n == 0) return;
  auto& set = state_->sets.at(name);
  if (set.chunk_rows > 0) {
    require(first == set.n_rows && n <= set.dims[0] - first, ErrorCode::internal,
            "{}: rows {} to {} of /{} came behind row {}", state_->path, first, first + n, name, set.n_rows);
    return state_->fill_chunks(name, set, static_cast<const std::uint8_t*>(rows), n);
  }
  const std::string doing = fmt::format("writing rows {} to {} of /{}", first, first + n, name);
  std::vector<hsize_t> start(set.dims.size(), 0), count = set.dims;
  start[0] = first;
  count[0] = n;
  const Hdf5Id file_space = check_id(H5Dget_space(set.id.get()), ErrorCode::library, state_->path, doing);
  check(H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
        ErrorCode::library, state_->path, doing);
  const Hdf5Id memory_space = check_id(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
                                       ErrorCode::library, state_->path, doing);
  const Hdf5Id type(H5Dget_type(set.id.get()));
  const std::size_t element_bytes = H5Tget_size(type.get());
  const hid_t memory_type = element_bytes == 1   ? H5T_NATIVE_UINT8
                            : element_bytes == 4 ? H5T_NATIVE_INT32
                                                 : H5T_NATIVE_UINT64;
  check(H5Dwrite(set.id.get(), memory_type, memory_space.get(), file_space.get(), H5P_DEFAULT, rows),
        ErrorCode::system_call, state_->path, doing);
}

void Hdf5Writer::attribute(const std::string& name, const std::string& text) {
  const Hdf5Id type = text_type();
  const char* pointer = text.c_str();
  state_->write_attribute(name, type.get(), type.get(), 1, true, &pointer);
}

void Hdf5Writer::attribute(const std::string& name, const std::vector<std::string>& texts) {
  const Hdf5Id type = text_type();
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  state_->write_attribute(name, type.get(), type.get(), pointers.size(), false, pointers.data());
}

void Hdf5Writer::attribute(const std::string& name, std::int64_t integer) {
  state_->write_attribute(name, H5T_STD_I64LE, H5T_NATIVE_INT64, 1, true, &integer);
}

void Hdf5Writer::attribute(const std::string& name, std::span<const float> floats) {
  state_->write_attribute(name, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, floats.size(), false, floats.data());
}

void Hdf5Writer::close() {
  for (auto& [name, set] : state_->sets)
    check(H5Dclose(set.id.release()), ErrorCode::system_call, state_->path, "closing /" + name);
  state_->sets.clear();
  check(H5Fclose(state_->file.release()), ErrorCode::system_call, state_->path, "writing it out");
}

}  // namespace lockstep::data
