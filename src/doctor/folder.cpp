#include "doctor/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "lockstep/error.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
constexpr std::size_t kQuickBytes = std::size_t{64} << 20, kFullBytes = std::size_t{256} << 20;
constexpr double kWriteSeconds = 2, kMetadataSeconds = 0.5;  // limits; a single slow call is not interrupted
constexpr int kMostFiles = 2000;
constexpr double kLockSeconds = 2;  // the time limit for a lock to become free

struct KindName {
  unsigned long magic;  // statfs(2)
  const char* name;
};
constexpr KindName kKinds[] = {{0xEF53, "ext4"},        {0x58465342, "XFS"},    {0x9123683E, "Btrfs"},
                               {0x01021994, "tmpfs"},   {0x6969, "NFS"},        {0x0BD00BD0, "Lustre"},
                               {0x47504653, "GPFS"},    {0x19830326, "BeeGFS"}, {0x00C36400, "Ceph"},
                               {0x794C7630, "overlay"}, {0x2FC12FC1, "ZFS"},    {0x65735546, "FUSE"},
                               {0x61756673, "aufs"},    {0x01021997, "9p"},     {0x53464846, "WSL"}};

std::string kind_of(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return "unknown";
  const auto magic = static_cast<unsigned long>(info.f_type) & 0xFFFFFFFF;
  for (const KindName& kind : kKinds)
    if (kind.magic == magic) return kind.name;
  return fmt::format("type {:#x}", magic);
}

std::string nearest_existing(const std::string& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error);
  while (!is_folder(folder) && folder.has_parent_path() && folder != folder.parent_path())
    folder = folder.parent_path();
  return folder;
}

/// "a/b is a file" if the path, or its nearest existing parent, is not a folder; otherwise empty.
std::string file_in_the_way(const std::string& path) {
  std::error_code error;
  fs::path nearest = fs::absolute(path, error);
  while (!is_there(nearest) && nearest != nearest.parent_path()) nearest = nearest.parent_path();
  return is_folder(nearest) ? "" : fmt::format("{} is a file, not a folder", nearest.string());
}

void make_folder(const std::string& path, const std::string& parent) {
  const bool is_made = ::mkdir(path.c_str(), 0777) == 0;
  require(is_made, ErrorCode::system_call, "cannot create a folder in {}: {}", parent, system_text(errno));
}

/// The block device of the file system, as the quota calls name it; empty if it has none.
std::string device_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  const std::string wanted = fmt::format("{}:{}", major(info.st_dev), minor(info.st_dev));
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string id, parent, number, word;
    fields >> id >> parent >> number;
    if (number != wanted) continue;
    while (fields >> word && word != "-") {
    }
    std::string kind, source;
    fields >> kind >> source;
    return source.starts_with("/dev/") ? source : "";
  }
  return "";
}

void measure_space(const std::string& path, FolderFacts& facts) {
  struct statvfs space {};
  if (::statvfs(path.c_str(), &space) == 0)
    facts.free_bytes = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  const std::string device = device_of(path);
  struct dqblk quota {};
  if (!device.empty() &&
      ::quotactl(QCMD(Q_GETQUOTA, USRQUOTA), device.c_str(), static_cast<int>(::getuid()),
                 reinterpret_cast<caddr_t>(&quota)) == 0 &&
      quota.dqb_bsoftlimit + quota.dqb_bhardlimit > 0) {
    constexpr double kBlockBytes = 1024;
    facts.quota_used_bytes = static_cast<double>(quota.dqb_curspace);
    facts.quota_bytes =
        kBlockBytes * static_cast<double>(quota.dqb_bsoftlimit > 0 ? quota.dqb_bsoftlimit : quota.dqb_bhardlimit);
  }
  std::byte lov[4096];
  const ::ssize_t n = ::getxattr(path.c_str(), "lustre.lov", lov, sizeof(lov));
  if (n > 0) facts.striping = striping_in(std::span(lov, static_cast<std::size_t>(n)));
}

void drop_cached(const Descriptor& file) { ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED); }

/// The rate, in bytes per second, of reading at most `most_bytes` of the file.
std::optional<double> read_rate(const std::string& path, std::size_t most_bytes) {
  const Descriptor file = open_regular_file(path);
  drop_cached(file);
  const std::size_t size = std::min<std::size_t>(size_bytes(file, path), most_bytes);
  if (size == 0) return std::nullopt;
  std::vector<std::byte> chunk(kChunkBytes);
  const Clock::time_point begin = Clock::now();
  std::size_t done = 0;
  for (; done < size && seconds_since(begin) < kWriteSeconds; done += chunk.size()) {
    chunk.resize(std::min(kChunkBytes, size - done));
    read_at(file, path, chunk, done);
  }
  return static_cast<double>(done) / seconds_since(begin);
}

void measure_writing(const std::string& folder, std::size_t most_bytes, FolderFacts& facts) {
  const std::string path = folder + "/file";
  {
    const Descriptor file = open_file(path, O_RDWR | O_CREAT | O_EXCL);
    std::vector<std::byte> chunk(kChunkBytes);
    for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = static_cast<std::byte>(i * 167 >> 3);
    const Clock::time_point begin = Clock::now();
    std::size_t done = 0;
    for (; done < most_bytes && seconds_since(begin) < kWriteSeconds; done += chunk.size())
      write_at(file, path, chunk, done);
    const Clock::time_point written = Clock::now();
    sync(file, path);
    facts.sync_seconds = seconds_since(written);
    facts.write_rate = static_cast<double>(done) / seconds_since(begin);
    drop_cached(file);
  }
  facts.read_rate = read_rate(path, most_bytes);
  const Clock::time_point begin = Clock::now();
  publish(path, path + ".renamed");
  facts.rename_seconds = seconds_since(begin);
}

void measure_metadata(const std::string& folder, FolderFacts& facts) {
  const Clock::time_point begin = Clock::now();
  int n = 0;
  for (; n < kMostFiles && seconds_since(begin) < kMetadataSeconds; ++n) {
    const std::string path = fmt::format("{}/{}", folder, n);
    open_file(path, O_WRONLY | O_CREAT | O_EXCL);
    (void)file_size_bytes(path);
    fs::remove(path);
  }
  facts.metadata_rate = n / seconds_since(begin);
}

/// The largest file in a folder or in its direct subfolders; empty if there is none.
std::string largest_file(const std::string& folder) {
  std::error_code error;
  std::string largest;
  std::uintmax_t most = 0;
  constexpr int kMostEntries = 10'000;
  int n = 0;
  for (auto it = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied, error);
       !error && it != fs::recursive_directory_iterator() && n < kMostEntries; it.increment(error), ++n) {
    if (it.depth() > 0) it.disable_recursion_pending();
    std::error_code ignored;
    if (!it->is_regular_file(ignored) || it->file_size(ignored) <= most) continue;
    if (::access(it->path().c_str(), R_OK) != 0) continue;
    most = it->file_size(ignored);
    largest = it->path();
  }
  return largest;
}

/// Runs the work of this rank. If it throws, the error becomes the problem of the folder.
template <typename Work>
void attempt(std::string& problem, const Work& work) {
  if (!problem.empty()) return;
  try {
    work();
  } catch (const Error& error) {
    problem = error.what();
  } catch (const fs::filesystem_error& error) {
    problem = fmt::format("{}: {}", error.path1().string(), error.code().message());
  }
}

/// flock(2), which the HDF5 library uses.
enum class Lock : std::uint8_t { held, busy, failed };
Lock try_lock(const Descriptor& file) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return Lock::held;
  return errno == EWOULDBLOCK ? Lock::busy : Lock::failed;
}

/// Rank 0 holds a lock, which the first ranks of the other nodes must fail to get. It then releases the lock, and they
/// must get it.
void check_locks(World& world, const std::string& folder, FolderFacts& facts) {
  const std::string path = folder + "/lock";
  const bool takes_part = world.local_rank() == 0 && facts.problem.empty() && facts.is_shared;
  Descriptor file;
  std::string& problem = facts.lock_problem;
  const auto open = [&] {
    file = open_file(path, O_RDWR | O_CREAT);
    if (world.rank() == 0 && try_lock(file) != Lock::held) problem = fmt::format("flock: {}", system_text(errno));
  };
  if (world.rank() == 0 && takes_part) attempt(problem, open);
  if (world.any(world.rank() == 0 && (!problem.empty() || !takes_part))) return;
  if (world.rank() != 0 && takes_part) {
    attempt(problem, open);
    if (problem.empty()) {
      const Lock lock = try_lock(file);
      if (lock == Lock::held) problem = "two nodes hold the same lock";
      if (lock == Lock::failed) problem = fmt::format("flock: {}", system_text(errno));
    }
  }
  world.barrier();
  if (world.rank() == 0) file = Descriptor();
  world.barrier();
  if (world.rank() != 0 && takes_part && problem.empty()) {
    const Clock::time_point begin = Clock::now();
    Lock lock = try_lock(file);
    while (lock == Lock::busy && seconds_since(begin) < kLockSeconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      lock = try_lock(file);
    }
    if (lock != Lock::held) problem = "a lock that was released stays busy";
    file = Descriptor();  // for the next node
  }
  world.barrier();
}

}  // namespace

std::string striping_in(std::span<const std::byte> lov) {
  // struct lov_user_md_v1 of Lustre: magic, pattern, object id (16 bytes), stripe size, stripe count (16 bits)
  constexpr std::uint32_t kMagic1 = 0x0BD10BD0, kMagic3 = 0x0BD30BD0;
  constexpr std::size_t kSizeAt = 24, kCountAt = 28, kLeast = 32;
  if (lov.size() < kLeast) return "";
  std::uint32_t magic = 0, size = 0;
  std::uint16_t count = 0;
  std::memcpy(&magic, lov.data(), sizeof(magic));
  std::memcpy(&size, lov.data() + kSizeAt, sizeof(size));
  std::memcpy(&count, lov.data() + kCountAt, sizeof(count));
  if (magic != kMagic1 && magic != kMagic3) return "";
  const bool is_all = count == 0xFFFF;
  return fmt::format("{} stripe{} of {:.3g} MiB", is_all ? "all" : fmt::to_string(count), count == 1 ? "" : "s",
                     static_cast<double>(size) / (1 << 20));
}

FolderFacts measure_folder(World& world, const std::string& path, FolderUse use, Effort effort) {
  const std::size_t most_bytes = effort == Effort::quick ? kQuickBytes : kFullBytes;
  const bool measures = world.local_rank() == 0;
  FolderFacts facts{.path = nearest_existing(path)};
  facts.kind = kind_of(facts.path);
  facts.is_writable = ::access(facts.path.c_str(), W_OK) == 0;
  std::error_code error;
  if (use == FolderUse::data && !is_folder(path)) facts.problem = "there is no such folder";
  if (use == FolderUse::run) facts.problem = file_in_the_way(path);
  if (measures && facts.problem.empty()) measure_space(facts.path, facts);

  std::string shared = fmt::format("{}/.lockstep-doctor.{}.{}", facts.path, world.host(), ::getpid());
  world.broadcast_text(shared);
  const std::string mine = fmt::format("{}/{}", shared, world.node());
  const bool only_reads = world.any(use == FolderUse::data && !facts.is_writable);
  if (only_reads) {
    const std::string file = measures ? largest_file(facts.path) : "";
    if (!file.empty()) attempt(facts.problem, [&] { facts.read_rate = read_rate(file, most_bytes); });
    return facts;
  }
  if (world.rank() == 0) attempt(facts.problem, [&] { make_folder(shared, facts.path); });
  const bool exists = !world.any(world.rank() == 0 && !facts.problem.empty());
  if (measures) {
    facts.is_shared = !exists || is_folder(shared);
    const std::string own = exists && facts.is_shared ? mine : fmt::format("{}.{}", shared, world.node());
    attempt(facts.problem, [&] {
      make_folder(own, facts.path);
      measure_writing(own, most_bytes, facts);
      measure_metadata(own, facts);
    });
    fs::remove_all(own, error);
  }
  if (world.n_nodes() > 1) check_locks(world, shared, facts);
  world.barrier();
  if (world.rank() == 0) fs::remove_all(shared, error);
  return facts;
}

}  // namespace lockstep::doctor
