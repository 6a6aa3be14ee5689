#include "checkpoint/hdf5_file.h"

#include <fcntl.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "checkpoint/file.h"
#include "checkpoint/user_block.h"
#include "lockstep/error.h"
#include "lockstep/handle.h"

namespace lockstep::checkpoint {
namespace {

struct Hdf5Traits {
  using Type = hid_t;
  static hid_t null() { return -1; }
  static void close(hid_t id) {
    if (H5Idec_ref(id) < 0) std::fprintf(stderr, "closing an HDF5 object failed\n");
  }
};
using Id = Handle<Hdf5Traits>;

constexpr const char* kStateGroup = "/state";
constexpr const char* kStateAttribute = "json";
constexpr const char* kHashAttribute = "xxh3";
constexpr int kMaxDepth = 16;  // of groups

herr_t innermost(unsigned, const H5E_error2_t* error, void* text) {
  *static_cast<std::string*>(text) = fmt::format("{}: {}", error->func_name, error->desc ? error->desc : "no reason");
  return 0;
}

/// HDF5 prints its own stack of errors unless told not to; here the innermost line goes into ours.
template <typename T>
T check(T result, const std::string& what, ErrorCode code = ErrorCode::library) {
  if (result < 0) {
    std::string reason = "no reason";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, innermost, &reason);
    H5Eclear2(H5E_DEFAULT);
    fail(code, "HDF5 failed while {}: {}", what, reason);
  }
  return result;
}

void silence() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

/// A file for HDF5 to work on, removed once open. In memory; else where temporary files go: it is sparse and small.
/// (HDF5 wants a path that can be resolved, which one of memfd_create() cannot.)
class Scratch {
 public:
  Scratch() {
    const char* temporary = std::getenv("TMPDIR");
    for (const std::string& directory : {std::string("/dev/shm"), std::string(temporary ? temporary : "/tmp")}) {
      path_ = directory + "/lockstep-checkpoint-XXXXXX";
      descriptor_ = Descriptor(::mkostemp(path_.data(), O_CLOEXEC));
      if (descriptor_) return;
    }
    fail(ErrorCode::system_call, "cannot make the temporary file {}: {}", path_,
         std::generic_category().message(errno));
  }
  ~Scratch() { remove(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void remove() {
    if (!path_.empty()) ::unlink(path_.c_str());
    path_.clear();
  }
  const std::string& path() const { return path_; }
  const Descriptor& descriptor() const { return descriptor_; }

 private:
  std::string path_;
  Descriptor descriptor_;
};

/// Access to a file with the one version of the file format, so that a newer library writes the same bytes, and
/// without locks: the name appears when the file is whole, and some cluster file systems have no locks.
Id access_properties(std::uint64_t metadata_bytes) {
  Id list(check(H5Pcreate(H5P_FILE_ACCESS), "preparing"));
  check(H5Pset_libver_bounds(list.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), "choosing the file format");
  check(H5Pset_file_locking(list.get(), false, true), "choosing no locks");
  check(H5Pset_fclose_degree(list.get(), H5F_CLOSE_STRONG), "preparing");
  if (metadata_bytes > 0) check(H5Pset_meta_block_size(list.get(), metadata_bytes), "preparing");
  return list;
}

/// Properties of something new that must not carry the time.
Id creation_properties(hid_t kind) {
  Id list(check(H5Pcreate(kind), "preparing"));
  check(H5Pset_obj_track_times(list.get(), false), "preparing");
  return list;
}

Id scalar_space() { return Id(check(H5Screate(H5S_SCALAR), "preparing")); }

void make_parent_groups(hid_t file, const std::string& path) {
  for (auto slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string group = path.substr(0, slash);
    if (check(H5Lexists(file, group.c_str(), H5P_DEFAULT), "looking for " + group) > 0) continue;
    const Id properties = creation_properties(H5P_GROUP_CREATE);
    Id made(check(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, properties.get(), H5P_DEFAULT), "making " + group));
  }
}

std::uint64_t make_data_set(hid_t file, const TensorEntry& tensor) {
  make_parent_groups(file, tensor.path);
  std::array<hsize_t, 4> dims{};
  for (int i = 0; i < tensor.shape.rank(); ++i)
    dims[static_cast<std::size_t>(i)] = static_cast<hsize_t>(tensor.shape[i]);
  const Id space =
      tensor.shape.rank() == 0
          ? scalar_space()
          : Id(check(H5Screate_simple(tensor.shape.rank(), dims.data(), nullptr), "making " + tensor.path));
  const Id properties = creation_properties(H5P_DATASET_CREATE);
  check(H5Pset_layout(properties.get(), H5D_CONTIGUOUS), "preparing");
  check(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY), "preparing");
  check(H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER), "preparing");
  const Id data_set(check(
      H5Dcreate2(file, tensor.path.c_str(), H5T_IEEE_F32LE, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
      "making " + tensor.path));
  // Room for the hash is taken now, so that entering it later moves nothing.
  const Id scalar = scalar_space();
  const Id hash(check(H5Acreate2(data_set.get(), kHashAttribute, H5T_STD_U64LE, scalar.get(), H5P_DEFAULT, H5P_DEFAULT),
                      "making the checksum of " + tensor.path));
  const std::uint64_t zero = 0;
  check(H5Awrite(hash.get(), H5T_NATIVE_UINT64, &zero), "making the checksum of " + tensor.path);
  const haddr_t offset = H5Dget_offset(data_set.get());
  require(offset != HADDR_UNDEF, ErrorCode::library, "HDF5 gave no place in the file to {}", tensor.path);
  return offset;
}

void make_state(hid_t file, const std::string& text) {
  const Id properties = creation_properties(H5P_GROUP_CREATE);
  const Id group(check(H5Gcreate2(file, kStateGroup, H5P_DEFAULT, properties.get(), H5P_DEFAULT), "making /state"));
  const Id type(check(H5Tcopy(H5T_C_S1), "preparing"));
  check(H5Tset_size(type.get(), text.size()), "preparing");
  check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "preparing");
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "preparing");
  const Id scalar = scalar_space();
  const Id attribute(check(H5Acreate2(group.get(), kStateAttribute, type.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT),
                           "making /state"));
  check(H5Awrite(attribute.get(), type.get(), text.data()), "writing /state");
}

}  // namespace

std::uint64_t metadata_allowance_bytes(const std::vector<TensorEntry>& tensors, const std::string& state_text) {
  std::uint64_t n_bytes = 65536 + state_text.size();
  for (const TensorEntry& tensor : tensors) n_bytes += 1024 + 2 * tensor.path.size();  // measured: about 400 each
  return n_bytes;
}

struct MetadataImage::Hdf5 {
  Scratch scratch;
  Id file;
};

MetadataImage::MetadataImage(std::vector<TensorEntry> tensors, const std::string& state_text)
    : hdf5_(std::make_unique<Hdf5>()), tensors_(std::move(tensors)) {
  silence();
  const Id creation = creation_properties(H5P_FILE_CREATE);
  check(H5Pset_userblock(creation.get(), kUserBlockBytes), "preparing");
  const Id access = access_properties(metadata_allowance_bytes(tensors_, state_text));
  hdf5_->file = Id(check(H5Fcreate(hdf5_->scratch.path().c_str(), H5F_ACC_TRUNC, creation.get(), access.get()),
                         "making the file's structure"));
  hdf5_->scratch.remove();
  make_state(hdf5_->file.get(), state_text);
  for (TensorEntry& tensor : tensors_) tensor.offset = make_data_set(hdf5_->file.get(), tensor);
}

MetadataImage::~MetadataImage() = default;

void MetadataImage::finish(std::span<const std::uint64_t> hashes) {
  require(hashes.size() == tensors_.size(), ErrorCode::internal, "{} checksums for {} tensors", hashes.size(),
          tensors_.size());
  silence();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::string what = "entering the checksum of " + tensors_[i].path;
    // Not H5Aopen_by_name: HDF5 1.10.8 cannot write through what that returns.
    const Id data_set(check(H5Dopen2(hdf5_->file.get(), tensors_[i].path.c_str(), H5P_DEFAULT), what));
    const Id hash(check(H5Aopen(data_set.get(), kHashAttribute, H5P_DEFAULT), what));
    check(H5Awrite(hash.get(), H5T_NATIVE_UINT64, &hashes[i]), what);
    tensors_[i].hash = hashes[i];
  }
  check(H5Fclose(hdf5_->file.release()), "closing the file's structure");
}

std::uint64_t MetadataImage::file_bytes() const {
  return size_bytes(hdf5_->scratch.descriptor(), "the file in memory");
}

std::vector<MetadataImage::Range> MetadataImage::metadata_ranges() const {
  std::vector<Range> extents;
  for (const TensorEntry& tensor : tensors_) extents.push_back({tensor.offset, tensor.offset + tensor.size_bytes()});
  std::ranges::sort(extents, {}, &Range::begin);
  extents.push_back({file_bytes(), file_bytes()});

  std::vector<Range> ranges;
  std::uint64_t at = kUserBlockBytes;
  for (const Range& extent : extents) {
    if (extent.begin > at) ranges.push_back({at, extent.begin});
    at = std::max(at, extent.end);
  }
  return ranges;
}

std::vector<std::byte> MetadataImage::read(const Range& range) const {
  std::vector<std::byte> bytes(range.end - range.begin);
  read_at(hdf5_->scratch.descriptor(), "the file in memory", bytes, range.begin);
  return bytes;
}

namespace {

TensorEntry read_entry(hid_t data_set, const std::string& name, const std::string& path, std::uint64_t file_bytes) {
  const auto damaged = ErrorCode::checkpoint_damaged;
  const std::string what = fmt::format("reading {} of {}", name, path);
  const Id type(check(H5Dget_type(data_set), what, damaged));
  require(check(H5Tequal(type.get(), H5T_IEEE_F32LE), what, damaged) > 0, ErrorCode::checkpoint_foreign,
          "{} of {} is not of 32-bit floating-point numbers", name, path);
  const Id space(check(H5Dget_space(data_set), what, damaged));
  const int rank = check(H5Sget_simple_extent_ndims(space.get()), what, damaged);
  require(rank <= 4, ErrorCode::checkpoint_foreign, "{} of {} has {} dimensions, at most 4 were expected", name, path,
          rank);

  TensorEntry entry;
  entry.path = name;
  std::array<hsize_t, 4> dims{};
  check(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr), what, damaged);
  std::uint64_t n_bytes = sizeof(float);
  for (int i = 0; i < rank; ++i) {
    const hsize_t d = dims[static_cast<std::size_t>(i)];
    require(!__builtin_mul_overflow(n_bytes, d, &n_bytes) && n_bytes <= file_bytes, damaged,
            "{} of {} has more elements than the file has bytes", name, path);
  }
  const std::array<std::int64_t, 4> d{static_cast<std::int64_t>(dims[0]), static_cast<std::int64_t>(dims[1]),
                                      static_cast<std::int64_t>(dims[2]), static_cast<std::int64_t>(dims[3])};
  entry.shape = rank == 0   ? Shape{}
                : rank == 1 ? Shape{d[0]}
                : rank == 2 ? Shape{d[0], d[1]}
                : rank == 3 ? Shape{d[0], d[1], d[2]}
                            : Shape{d[0], d[1], d[2], d[3]};
  entry.offset = H5Dget_offset(data_set);
  require(
      n_bytes > 0 && entry.offset != HADDR_UNDEF && entry.offset <= file_bytes && n_bytes <= file_bytes - entry.offset,
      damaged, "{} of {} does not lie inside the file", name, path);

  const Id hash(check(H5Aopen(data_set, kHashAttribute, H5P_DEFAULT), what, damaged));
  const Id hash_space(check(H5Aget_space(hash.get()), what, damaged));
  require(H5Sget_simple_extent_npoints(hash_space.get()) == 1, damaged, "the checksum of {} of {} is not one number",
          name, path);
  check(H5Aread(hash.get(), H5T_NATIVE_UINT64, &entry.hash), what, damaged);
  return entry;
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
    return -1;  // no exception goes through HDF5
  }
}

struct Walk {
  const std::string& path;
  std::uint64_t file_bytes;
  Structure& out;
  std::uint64_t n_links = 0;  // followed so far
};

void read_group(hid_t group, const std::string& name, int depth, Walk& walk) {
  const auto damaged = ErrorCode::checkpoint_damaged;
  const std::string what = fmt::format("reading {} of {}", name, walk.path);
  std::vector<Link> links;
  check(H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, add_link, &links), what, damaged);
  // A link takes more than 8 bytes: whoever follows more of them goes in circles, or to one place on many ways.
  walk.n_links += links.size();
  require(depth < kMaxDepth && walk.n_links <= walk.file_bytes / 8, damaged, "{} has groups in groups without end",
          walk.path);
  for (const Link& link : links) {
    const std::string full = fmt::format("{}/{}", name, link.name);
    require(!link.leads_elsewhere, damaged, "{} of {} is a link to elsewhere", full, walk.path);
    const Id object(check(H5Oopen(group, link.name.c_str(), H5P_DEFAULT), what, damaged));
    const H5I_type_t kind = H5Iget_type(object.get());
    if (kind == H5I_GROUP && full != kStateGroup)
      read_group(object.get(), full, depth + 1, walk);
    else if (kind == H5I_DATASET)
      walk.out.tensors.push_back(read_entry(object.get(), full, walk.path, walk.file_bytes));
  }
}

std::string read_state(hid_t file, const std::string& path, std::uint64_t file_bytes) {
  const auto damaged = ErrorCode::checkpoint_damaged;
  const std::string what = fmt::format("reading /state of {}", path);
  const Id attribute(
      check(H5Aopen_by_name(file, kStateGroup, kStateAttribute, H5P_DEFAULT, H5P_DEFAULT), what, damaged));
  const Id type(check(H5Aget_type(attribute.get()), what, damaged));
  const std::size_t size = H5Tget_size(type.get());
  require(
      H5Tget_class(type.get()) == H5T_STRING && H5Tis_variable_str(type.get()) == 0 && size > 0 && size <= file_bytes,
      damaged, "/state of {} is not a text", path);
  const Id space(check(H5Aget_space(attribute.get()), what, damaged));
  require(H5Sget_simple_extent_npoints(space.get()) == 1, damaged, "/state of {} is not one text", path);
  std::string text(size, '\0');
  check(H5Aread(attribute.get(), type.get(), text.data()), what, damaged);
  return text;
}

}  // namespace

Structure read_structure(int descriptor, const std::string& path, std::uint64_t file_bytes) {
  silence();
  const Id access = access_properties(0);
  const Id file(check(H5Fopen(fmt::format("/proc/self/fd/{}", descriptor).c_str(), H5F_ACC_RDONLY, access.get()),
                      "opening " + path, ErrorCode::checkpoint_damaged));
  Structure out;
  out.state_text = read_state(file.get(), path, file_bytes);
  const Id root(check(H5Gopen2(file.get(), "/", H5P_DEFAULT), "opening " + path, ErrorCode::checkpoint_damaged));
  Walk walk{path, file_bytes, out};
  read_group(root.get(), "", 0, walk);
  std::ranges::sort(out.tensors, {}, &TensorEntry::path);
  return out;
}

}  // namespace lockstep::checkpoint
