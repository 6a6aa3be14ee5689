#include "checkpoint/structure.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "hdf5/reader.h"
#include "hdf5/user_block.h"
#include "hdf5/writer.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kStateGroup = "/state";
constexpr const char* kStateAttribute = "json";
constexpr const char* kHashAttribute = "xxh3";
constexpr const char* kImageName = "the checkpoint's metadata in memory";  // in messages

/// A file for HDF5 to work on, whose name is removed once it is open. It is in memory if that has room, and otherwise
/// in the folder of temporary files. It is sparse and small. (HDF5 needs a path that can be resolved, which a file of
/// memfd_create() does not have.)
class ScratchFile {
 public:
  explicit ScratchFile(std::uint64_t needed_bytes) {
    const char* temporary = std::getenv("TMPDIR");
    for (const std::string& directory : {std::string("/dev/shm"), std::string(temporary ? temporary : "/tmp")}) {
      struct statvfs status {};
      const bool is_full = ::statvfs(directory.c_str(), &status) == 0 && status.f_blocks > 0 &&
                           status.f_bavail * status.f_frsize < needed_bytes;
      if (is_full && directory == "/dev/shm") continue;
      path_ = directory + "/lockstep-checkpoint-XXXXXX";
      descriptor_ = Descriptor(::mkostemp(path_.data(), O_CLOEXEC));
      if (descriptor_) return;
    }
    fail(ErrorCode::system_call, "cannot create the temporary file {}: {}", path_, system_text(errno));
  }
  ~ScratchFile() { remove_name(); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  void remove_name() {
    if (!path_.empty()) ::unlink(path_.c_str());
    path_.clear();
  }
  const std::string& path() const { return path_; }
  const Descriptor& descriptor() const { return descriptor_; }

 private:
  std::string path_;
  Descriptor descriptor_;
};

std::vector<std::uint64_t> dims_of(const Shape& shape) {
  std::vector<std::uint64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(static_cast<std::uint64_t>(shape[i]));
  return dims;
}

}  // namespace

std::uint64_t metadata_allowance_bytes(const std::vector<TensorEntry>& tensors, const std::string& state_text) {
  std::uint64_t n_bytes = 65536 + state_text.size();
  // About 400 bytes per tensor were measured.
  for (const TensorEntry& tensor : tensors) n_bytes += 1024 + 2 * tensor.path.size();
  return n_bytes;
}

struct MetadataImage::Scratch {
  ScratchFile file;
  hdf5::Writer hdf5;

  explicit Scratch(std::uint64_t metadata_bytes)
      : file(2 * metadata_bytes),
        hdf5(file.path(), {.user_block_bytes = hdf5::kUserBlockBytes,
                           .placement = {},
                           .format = hdf5::FileFormat::v110,
                           .metadata_block_bytes = metadata_bytes}) {
    file.remove_name();
  }
};

MetadataImage::MetadataImage(std::vector<TensorEntry> tensors, const std::string& state_text)
    : scratch_(std::make_unique<Scratch>(metadata_allowance_bytes(tensors, state_text))), tensors_(std::move(tensors)) {
  hdf5::Writer& hdf5 = scratch_->hdf5;
  hdf5.create_group(kStateGroup);
  hdf5.fixed_text(kStateGroup, kStateAttribute, state_text);
  for (TensorEntry& tensor : tensors_) {
    tensor.offset = hdf5.reserve_dataset(tensor.path, "float32", dims_of(tensor.shape));
    // Space for the hash is allocated now, so that writing the hash later moves nothing.
    hdf5.unsigned_integer(tensor.path, kHashAttribute, 0);
  }
}

MetadataImage::~MetadataImage() = default;

void MetadataImage::finish(std::span<const std::uint64_t> hashes) {
  require(hashes.size() == tensors_.size(), ErrorCode::internal, "{} checksums for {} tensors", hashes.size(),
          tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    scratch_->hdf5.unsigned_integer(tensors_[i].path, kHashAttribute, hashes[i]);
    tensors_[i].hash = hashes[i];
  }
  scratch_->hdf5.close();
}

std::uint64_t MetadataImage::file_bytes() const { return size_bytes(scratch_->file.descriptor(), kImageName); }

std::vector<MetadataImage::Range> MetadataImage::metadata_ranges() const {
  std::vector<Range> extents;
  for (const TensorEntry& tensor : tensors_) extents.push_back({tensor.offset, tensor.offset + tensor.size_bytes()});
  std::ranges::sort(extents, {}, &Range::begin);
  extents.push_back({file_bytes(), file_bytes()});

  std::vector<Range> ranges;
  std::uint64_t at = hdf5::kUserBlockBytes;
  for (const Range& extent : extents) {
    if (extent.begin > at) ranges.push_back({at, extent.begin});
    at = std::max(at, extent.end);
  }
  return ranges;
}

std::vector<std::byte> MetadataImage::read(const Range& range) const {
  std::vector<std::byte> bytes(range.end - range.begin);
  read_at(scratch_->file.descriptor(), kImageName, bytes, range.begin);
  return bytes;
}

Structure read_structure(int descriptor, const std::string& path, std::uint64_t file_bytes) {
  const auto damaged = ErrorCode::checkpoint_damaged;
  const hdf5::Reader hdf5(descriptor, path, {.unreadable = damaged, .truncated = damaged});
  Structure out;
  out.state_text = hdf5.text(kStateAttribute, kStateGroup);
  for (const std::string& name : hdf5.datasets()) {
    const hdf5::DatasetPlace place = hdf5.dataset(name);
    require(place.type == "float32", ErrorCode::checkpoint_format,
            "{} of {} does not contain 32-bit floating-point numbers", name, path);
    require(place.dims.size() <= 4, ErrorCode::checkpoint_format, "{} of {} has {} dimensions; expected at most 4",
            name, path, place.dims.size());
    require(place.size_bytes > 0 && place.offset <= file_bytes && place.size_bytes <= file_bytes - place.offset,
            damaged, "{} of {} is not completely inside the file", name, path);
    out.tensors.push_back({.path = name,
                           .shape = shape_of(place.dims),
                           .offset = place.offset,
                           .hash = hdf5.unsigned_integer(kHashAttribute, name)});
  }
  return out;
}

}  // namespace lockstep::checkpoint
