#include "comm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;  // on x86; elsewhere, only large parts get huge pages
constexpr int kCollapse = 25;                            // MADV_COLLAPSE, which older headers do not define

std::string mebibytes(std::size_t size_bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(size_bytes) / (1 << 20));
}

std::string directory() {
  if (::access("/dev/shm", W_OK | X_OK) == 0) return "/dev/shm";
  const char* temporary = std::getenv("TMPDIR");
  std::string out = temporary != nullptr ? temporary : "/tmp";
  log::warning("/dev/shm is not writable: memory shared between ranks is placed in {}, which may be slow", out);
  return out;
}

/// The free bytes of the file system that holds `path`; SIZE_MAX if it does not report them.
std::size_t free_bytes(const std::string& path) {
  struct statvfs status;
  if (::statvfs(path.c_str(), &status) != 0 || status.f_blocks == 0) return SIZE_MAX;
  return static_cast<std::size_t>(status.f_bavail) * status.f_frsize;
}

[[noreturn]] void no_space(const std::string& path, std::size_t needed_bytes, const std::string& purpose) {
  fail(ErrorCode::comm_shared_memory,
       "the ranks of a node need {} of shared memory for {}, but {} has only {} free: enlarge it (`mount -o "
       "remount,size=... /dev/shm`, `docker run --shm-size=...`), remove old files from it, or set comm.backend=mpi",
       mebibytes(needed_bytes), purpose, path, mebibytes(free_bytes(path)));
}

}  // namespace

SharedSegment SharedSegment::create(std::size_t size_bytes, const std::string& purpose) {
  const std::string where = directory();
  if (free_bytes(where) < size_bytes) no_space(where, size_bytes, purpose);
  SharedSegment out;
  out.purpose_ = purpose;
  for (int attempt = 0; attempt < 16 && !out.descriptor_; ++attempt) {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0) random = static_cast<std::uint64_t>(attempt);
    out.path_ = fmt::format("{}/lockstep-{}-{}-{:016x}", where, ::getuid(), ::getpid(), random);
    out.descriptor_ = Descriptor(::open(out.path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!out.descriptor_ && errno != EEXIST) break;
  }
  require(static_cast<bool>(out.descriptor_), ErrorCode::comm_shared_memory, "cannot create {} for {}: {}", out.path_,
          purpose, std::strerror(errno));
  out.has_name_ = true;
  if (::ftruncate(out.descriptor(), static_cast<off_t>(size_bytes)) != 0) no_space(where, size_bytes, purpose);
  out.map(size_bytes);
  return out;
}

SharedSegment SharedSegment::open(const std::string& path, std::size_t size_bytes, const std::string& purpose) {
  SharedSegment out;
  out.purpose_ = purpose;
  out.path_ = path;
  out.descriptor_ = Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  require(static_cast<bool>(out.descriptor_), ErrorCode::comm_shared_memory,
          "cannot open {}, which another rank of this node created for {}: {}. All ranks of a node must see the same "
          "/dev/shm: share it between containers, or set comm.backend=mpi",
          path, purpose, std::strerror(errno));
  out.map(size_bytes);
  return out;
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept { *this = std::move(other); }

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(path_, other.path_);
  std::swap(purpose_, other.purpose_);
  std::swap(has_name_, other.has_name_);
  return *this;
}

SharedSegment::~SharedSegment() {
  unlink();
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

void SharedSegment::map(std::size_t size_bytes) {
  // A huge page of the file is mapped as a huge page only if the address is aligned to its size.
  const std::size_t alignment = size_bytes >= kHugePage ? kHugePage : 1;
  mapping_bytes_ = size_bytes + alignment - 1;
  void* memory = ::mmap(nullptr, mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) {
    mapping_ = memory;
    const auto address = (reinterpret_cast<std::uintptr_t>(memory) + alignment - 1) / alignment * alignment;
    memory = ::mmap(reinterpret_cast<void*>(address), size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                    descriptor(), 0);
  }
  require(memory != MAP_FAILED, ErrorCode::comm_shared_memory, "cannot map {} of {} for {}: {}", mebibytes(size_bytes),
          path_, purpose_, std::strerror(errno));
  data_ = static_cast<std::byte*>(memory);
  size_bytes_ = size_bytes;
}

void SharedSegment::reserve(std::size_t begin_bytes, std::size_t size_bytes) const {
  reserve_huge_pages(begin_bytes, size_bytes);
  allocate(begin_bytes, size_bytes);
}

// Other ranks map this memory anew in every step (HostCommunicator::release_peers). With small pages, this
// takes 30 ms per 256 MiB; with huge ones, 2 ms. /dev/shm itself is usually mounted without huge pages.
void SharedSegment::reserve_huge_pages(std::size_t begin_bytes, std::size_t size_bytes) const {
  const std::size_t first = (begin_bytes + kHugePage - 1) / kHugePage * kHugePage;
  const std::size_t end = (begin_bytes + size_bytes) / kHugePage * kHugePage;
  if (first >= end) return;
  // Linux collapses memory into a huge page only if at least one small page of it exists. This is fastest if there is
  // exactly one.
  for (std::size_t at = first; at < end; at += kHugePage) allocate(at, 1);
  // Available since Linux 6.1. If it fails, the pages stay small.
  ::madvise(data_ + first, end - first, kCollapse);
}

void SharedSegment::allocate(std::size_t begin_bytes, std::size_t size_bytes) const {
  int status = 0;
  do {
    status = ::posix_fallocate(descriptor(), static_cast<off_t>(begin_bytes), static_cast<off_t>(size_bytes));
  } while (status == EINTR);
  if (status == ENOSPC || status == EFBIG) no_space(path_, size_bytes_, purpose_);
  require(status == 0, ErrorCode::comm_shared_memory, "cannot reserve {} in {} for {}: {}", mebibytes(size_bytes),
          path_, purpose_, std::strerror(status));
}

void SharedSegment::unlink() {
  if (has_name_) ::unlink(path_.c_str());
  has_name_ = false;
}

}  // namespace lockstep::comm
