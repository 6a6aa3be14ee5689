#include "hdf5/reader.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "hdf5/library.h"

namespace lockstep::hdf5 {
namespace {

constexpr std::uint64_t kMaxAttributeElements = 1u << 20;
constexpr std::size_t kMaxTextBytes = 16u << 20;
constexpr int kMaxDepth = 16;  // of nested groups

std::string type_name(hid_t type) {
  const std::size_t bits = 8 * H5Tget_size(type);
  const std::string order = bits > 8 && H5Tget_order(type) == H5T_ORDER_BE ? ", big-endian" : "";
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_INTEGER) return fmt::format("{}int{}{}", H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "", bits, order);
  if (kind == H5T_FLOAT) return fmt::format("float{}{}", bits, order);
  return kind == H5T_STRING ? "text" : "a type that is neither a number nor text";
}

const char* layout_name(H5D_layout_t layout) {
  return layout == H5D_CHUNKED   ? "in chunks"
         : layout == H5D_COMPACT ? "compact"
         : layout == H5D_VIRTUAL ? "virtual"
                                 : "unknown";
}

/// "/images" for "images" or "/images"
std::string absolute(const std::string& name) { return name.starts_with('/') ? name : "/" + name; }

/// Whether this HDF5 reports chunk positions that do not include the user block, as versions before 1.14.4 do (issue
/// 3003 of HDF5). Determined with a file in memory.
bool chunk_offsets_leave_out_user_block() {
  constexpr hsize_t kUserBlockBytes = 64u << 10;  // larger than the rest of the file
  const hsize_t one[1] = {1}, origin[1] = {0};
  const Id creation(H5Pcreate(H5P_FILE_CREATE)), access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_userblock(creation.get(), kUserBlockBytes);
  H5Pset_fapl_core(access.get(), kUserBlockBytes, false);
  const Id file(H5Fcreate("in memory", H5F_ACC_TRUNC, creation.get(), access.get()));
  const Id chunked(H5Pcreate(H5P_DATASET_CREATE)), space(H5Screate_simple(1, one, nullptr));
  H5Pset_chunk(chunked.get(), 1, one);
  const Id set(H5Dcreate2(file.get(), "set", H5T_STD_U8LE, space.get(), H5P_DEFAULT, chunked.get(), H5P_DEFAULT));
  const std::uint8_t value = 1;
  unsigned filters = 0;
  haddr_t offset = HADDR_UNDEF;
  hsize_t size_bytes = 0;
  require(H5Dwrite_chunk(set.get(), H5P_DEFAULT, 0, origin, 1, &value) >= 0 &&
              H5Dget_chunk_info_by_coord(set.get(), origin, &filters, &offset, &size_bytes) >= 0,
          ErrorCode::library, "HDF5 cannot locate a chunk of a file in memory: {}", reason().text);
  return offset < kUserBlockBytes;
}

struct Link {
  std::string name;
  bool leads_elsewhere;  // to another file, or to a name
};

herr_t add_link(hid_t, const char* name, const H5L_info_t* info, void* links) {
  try {
    static_cast<std::vector<Link>*>(links)->push_back({name, info->type != H5L_TYPE_HARD});
    return 0;
  } catch (...) {
    return -1;  // an exception must not pass through HDF5
  }
}

}  // namespace

struct Reader::State {
  std::string path;
  ReaderErrors errors;
  Id file;

  struct Attribute {
    Id id, type;
    std::uint64_t n_elements = 0;
  };

  void open(const std::string& name) {
    start();
    const Id access = access_properties(path);
    const hid_t opened = H5Fopen(name.c_str(), H5F_ACC_RDONLY, access.get());
    if (opened < 0) {
      const std::string why = reason().text;
      fail(why.starts_with("truncated file") ? errors.truncated : errors.unreadable, "{} cannot be opened as HDF5: {}",
           path, why);
    }
    file = Id(opened);
  }

  Id id(hid_t value, const std::string& doing) const {
    return check_id(value, {errors.unreadable, errors.unreadable}, path, doing);
  }
  void check_status(herr_t status, const std::string& doing) const {
    check(status, {errors.unreadable, errors.unreadable}, path, doing);
  }
  template <typename... Args>
  void expect(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    require(condition, errors.unreadable, format, std::forward<Args>(args)...);
  }

  Id open_dataset(const std::string& name) const {
    return id(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), "opening the data set " + absolute(name));
  }

  Attribute open_attribute(const std::string& name, const std::string& object) const {
    const std::string doing = fmt::format("opening the attribute '{}' of {}", name, object);
    const Id owner = id(H5Oopen(file.get(), object.c_str(), H5P_DEFAULT), doing);
    expect(H5Aexists(owner.get(), name.c_str()) > 0, "{}: {} lacks the attribute '{}'", path,
           object == "/" ? "the file" : object, name);
    Attribute a;
    a.id = id(H5Aopen(owner.get(), name.c_str(), H5P_DEFAULT), doing);
    a.type = id(H5Aget_type(a.id.get()), doing);
    const Id space = id(H5Aget_space(a.id.get()), doing);
    const hssize_t n = H5Sget_simple_extent_npoints(space.get());
    expect(n >= 0 && static_cast<std::uint64_t>(n) <= kMaxAttributeElements,
           "{}: the attribute '{}' has {} elements; at most {} are read", path, name, n, kMaxAttributeElements);
    a.n_elements = static_cast<std::uint64_t>(n);
    return a;
  }

  void expect_type(bool ok, const std::string& name, const std::string& expected, const Attribute& found) const {
    expect(ok, "{}: the attribute '{}' must be {}, but is {} of {} element{}", path, name, expected,
           type_name(found.type.get()), found.n_elements, found.n_elements == 1 ? "" : "s");
  }

  template <typename T>
  T whole_number(const std::string& name, const std::string& object, hid_t memory_type) const {
    const Attribute attribute = open_attribute(name, object);
    expect_type(H5Tget_class(attribute.type.get()) == H5T_INTEGER && attribute.n_elements == 1, name,
                "one whole number", attribute);
    T value = 0;
    read_attribute(attribute, memory_type, &value, name);
    return value;
  }

  void read_attribute(const Attribute& attribute, hid_t memory_type, void* out, const std::string& name) const {
    check_status(H5Aread(attribute.id.get(), memory_type, out), fmt::format("reading the attribute '{}'", name));
  }

  /// Throws unless samples can be read in place.
  void check_layout(const std::string& name, hid_t creation, Layouts layouts) const {
    const H5D_layout_t layout = H5Pget_layout(creation);
    if (layout == H5D_CHUNKED && layouts == Layouts::contiguous_or_chunked) {
      expect(
          H5Pget_nfilters(creation) == 0,
          "{}: the data set '{}' is compressed or uses another filter; it is read in place and must not have filters "
          "(h5py: create_dataset without compression, shuffle and fletcher32)",
          path, absolute(name));
      return;
    }
    expect(layout == H5D_CONTIGUOUS && H5Pget_external_count(creation) == 0,
           "{}: the data set '{}' is stored {}; it is read in place and must be contiguous in this file (h5py: "
           "create_dataset without chunks and compression)",
           path, absolute(name), layout == H5D_CONTIGUOUS ? "in other files" : layout_name(layout));
  }

  /// Fills the sizes of the chunks; throws unless they hold whole rows.
  void read_chunk_shape(const std::string& name, hid_t creation, std::size_t element_bytes, DatasetPlace& place) const {
    std::vector<hsize_t> chunk(place.dims.size());
    check_status(H5Pget_chunk(creation, static_cast<int>(chunk.size()), chunk.data()),
                 "reading the shape of the chunks of " + absolute(name));
    expect(std::equal(chunk.begin() + 1, chunk.end(), place.dims.begin() + 1),
           "{}: the chunks of '{}' have the shape ({}); they must hold whole images of ({})", path, absolute(name),
           fmt::join(chunk, ", "), fmt::join(place.dims.begin() + 1, place.dims.end(), ", "));
    place.chunk_rows = chunk[0];
    place.chunk_bytes = element_bytes;
    for (const hsize_t d : chunk)
      expect(!__builtin_mul_overflow(place.chunk_bytes, std::uint64_t{d}, &place.chunk_bytes) && place.chunk_bytes > 0,
             "{}: the shape ({}) of the chunks of '{}' is not possible", path, fmt::join(chunk, ", "), absolute(name));
  }

  /// Appends the data sets below a group. `n_links` counts the links that were followed: each takes more than 8 bytes
  /// of the file, so more of them mean that groups contain each other.
  void list(hid_t group, const std::string& name, int depth, std::uint64_t& n_links,
            std::vector<std::string>& out) const {
    const std::string doing = fmt::format("listing {}/", name);
    std::vector<Link> links;
    check_status(H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, add_link, &links), doing);
    n_links += links.size();
    hsize_t file_bytes = 0;
    check_status(H5Fget_filesize(file.get(), &file_bytes), "determining its size");
    expect(depth < kMaxDepth && n_links <= file_bytes / 8, "{} has groups that contain themselves", path);
    for (const Link& link : links) {
      const std::string full = fmt::format("{}/{}", name, link.name);
      expect(!link.leads_elsewhere, "{}: '{}' is a link to another place; the data must be in this file", path, full);
      const Id object = id(H5Oopen(group, link.name.c_str(), H5P_DEFAULT), doing);
      const H5I_type_t kind = H5Iget_type(object.get());
      if (kind == H5I_GROUP)
        list(object.get(), full, depth + 1, n_links, out);
      else if (kind == H5I_DATASET)
        out.push_back(full);
    }
  }
};

Reader::Reader(const std::string& path, const ReaderErrors& errors) : state_(new State{path, errors, {}}) {
  state_->open(path);
}
Reader::Reader(int descriptor, const std::string& path, const ReaderErrors& errors)
    : state_(new State{path, errors, {}}) {
  state_->open(fmt::format("/proc/self/fd/{}", descriptor));
}
Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;

std::vector<std::string> Reader::datasets() const {
  const State& s = *state_;
  const Id root = s.id(H5Gopen2(s.file.get(), "/", H5P_DEFAULT), "opening its root group");
  std::vector<std::string> out;
  std::uint64_t n_links = 0;
  s.list(root.get(), "", 0, n_links, out);
  std::ranges::sort(out);
  return out;
}

DatasetPlace Reader::dataset(const std::string& name, Layouts layouts) const {
  const State& s = *state_;
  const hid_t file = s.file.get();
  const std::string full = absolute(name);
  s.expect(H5Lexists(file, name.c_str(), H5P_DEFAULT) > 0, "{} has no data set '{}'", s.path, full);
  H5L_info_t link;
  s.check_status(H5Lget_info(file, name.c_str(), &link, H5P_DEFAULT), "inspecting " + full);
  s.expect(link.type == H5L_TYPE_HARD, "{}: '{}' is a link to another place; the data must be in this file", s.path,
           full);
  const Id set = s.open_dataset(name);
  const Id creation = s.id(H5Dget_create_plist(set.get()), "inspecting " + full);
  s.check_layout(name, creation.get(), layouts);

  DatasetPlace place;
  const Id type = s.id(H5Dget_type(set.get()), "inspecting the type of " + full);
  place.type = type_name(type.get());
  const Id space = s.id(H5Dget_space(set.get()), "inspecting the shape of " + full);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  s.expect(rank >= 0 && rank <= H5S_MAX_RANK, "{}: the shape of '{}' cannot be read: {}", s.path, full, reason().text);
  std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
  if (rank > 0)
    s.check_status(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr), "reading the shape of " + full);
  place.size_bytes = H5Tget_size(type.get());
  for (const hsize_t d : dims) {
    s.expect(!__builtin_mul_overflow(place.size_bytes, std::uint64_t{d}, &place.size_bytes),
             "{}: the shape of '{}' has more bytes than a file can hold", s.path, full);
    place.dims.push_back(d);
  }
  if (H5Pget_layout(creation.get()) == H5D_CHUNKED)
    s.read_chunk_shape(name, creation.get(), H5Tget_size(type.get()), place);
  if (place.size_bytes == 0 || place.chunk_rows > 0) return place;
  const haddr_t offset = H5Dget_offset(set.get());
  s.expect(offset != HADDR_UNDEF, "{}: the data set '{}' was created but never written", s.path, full);
  place.offset = offset;
  return place;
}

std::function<std::uint64_t(std::uint64_t)> Reader::chunk_offsets(const std::string& name,
                                                                  const DatasetPlace& place) const {
  const State* s = state_.get();
  const auto set = std::make_shared<Id>(s->open_dataset(name));
  const Id creation = s->id(H5Fget_create_plist(s->file.get()), "inspecting the file");
  hsize_t user_block_bytes = 0;
  s->check_status(H5Pget_userblock(creation.get(), &user_block_bytes), "inspecting the file");
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
    s->check_status(H5Dget_chunk_info_by_coord(set->get(), first.data(), &filters, &offset, &size_bytes),
                    fmt::format("looking up chunk {} of {}", chunk, absolute(name)));
    s->expect(offset != HADDR_UNDEF, "{}: chunk {} of '{}' was never written", s->path, chunk, absolute(name));
    s->expect(size_bytes == place.chunk_bytes, "{}: chunk {} of '{}' has {} bytes instead of {}", s->path, chunk,
              absolute(name), size_bytes, place.chunk_bytes);
    return std::uint64_t{offset} + user_block_bytes;
  };
}

bool Reader::has_attribute(const std::string& name, const std::string& object) const {
  return H5Aexists_by_name(state_->file.get(), object.c_str(), name.c_str(), H5P_DEFAULT) > 0;
}

std::vector<std::string> Reader::texts(const std::string& name, const std::string& object) const {
  const State& s = *state_;
  const auto attribute = s.open_attribute(name, object);
  const hid_t type = attribute.type.get();
  s.expect_type(H5Tget_class(type) == H5T_STRING, name, "text", attribute);
  std::vector<std::string> out;
  const auto n = static_cast<std::size_t>(attribute.n_elements);
  if (H5Tis_variable_str(type) > 0) {
    std::vector<char*> pointers(n, nullptr);
    const Id memory(H5Tcopy(type));
    s.read_attribute(attribute, memory.get(), pointers.data(), name);
    for (char* p : pointers) {
      out.emplace_back(p ? p : "");
      H5free_memory(p);
    }
    return out;
  }
  const std::size_t length = H5Tget_size(type);
  s.expect(length <= kMaxTextBytes && length * n <= kMaxTextBytes, "{}: the attribute '{}' is longer than {} bytes",
           s.path, name, kMaxTextBytes);
  std::vector<char> bytes(length * n);
  s.read_attribute(attribute, type, bytes.data(), name);
  for (std::size_t i = 0; i < n; ++i) {
    std::string text(bytes.data() + i * length, length);
    out.push_back(text.substr(0, text.find('\0')));
  }
  return out;
}

std::string Reader::text(const std::string& name, const std::string& object) const {
  std::vector<std::string> all = texts(name, object);
  state_->expect(all.size() == 1, "{}: the attribute '{}' must be one text, but is a list of {}", state_->path, name,
                 all.size());
  return all.front();
}

std::int64_t Reader::integer(const std::string& name, const std::string& object) const {
  return state_->whole_number<std::int64_t>(name, object, H5T_NATIVE_INT64);
}

std::uint64_t Reader::unsigned_integer(const std::string& name, const std::string& object) const {
  return state_->whole_number<std::uint64_t>(name, object, H5T_NATIVE_UINT64);
}

std::vector<float> Reader::floats(const std::string& name, const std::string& object) const {
  const auto attribute = state_->open_attribute(name, object);
  const H5T_class_t kind = H5Tget_class(attribute.type.get());
  state_->expect_type(kind == H5T_FLOAT || kind == H5T_INTEGER, name, "numbers", attribute);
  std::vector<float> values(static_cast<std::size_t>(attribute.n_elements));
  if (!values.empty()) state_->read_attribute(attribute, H5T_NATIVE_FLOAT, values.data(), name);
  return values;
}

std::string version() {
  start();
  unsigned major = 0, minor = 0, release = 0;
  return H5get_libversion(&major, &minor, &release) < 0 ? "unknown" : fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace lockstep::hdf5
