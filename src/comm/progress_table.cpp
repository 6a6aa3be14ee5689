#include "comm/progress_table.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
constexpr const char* kPurpose = "the progress table of the node";

std::size_t table_bytes(int local_size) { return sizeof(RankEntry) * static_cast<std::size_t>(local_size); }

struct flock lock_of(int local_rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = local_rank;
  lock.l_len = 1;
  return lock;
}

/// FUTEX_PRIVATE_FLAG is not set, because several processes share the memory.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* limit) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, limit, nullptr, 0);
}

}  // namespace

std::string_view copy_label(std::string_view text, char (&label)[kLabelBytes]) {
  const std::size_t length = std::min(text.size(), kLabelBytes - 1);
  std::memcpy(label, text.data(), length);
  label[length] = '\0';
  return {label, length};
}

ProgressTable::ProgressTable(SharedSegment segment, int local_rank, int local_size)
    : segment_(std::move(segment)), local_rank_(local_rank), local_size_(local_size) {
  segment_.reserve(0, table_bytes(local_size));
  // The file is zero-filled, which is the initial value of every member. No constructor runs, since it could overwrite
  // what another rank has already written to its entry.
  entries_ = reinterpret_cast<RankEntry*>(segment_.data());
  struct flock lock = lock_of(local_rank);
  // In a statement of its own, because the arguments of a call may be evaluated in any order, and errno must be read
  // after fcntl.
  const bool is_locked = ::fcntl(segment_.descriptor(), F_SETLK, &lock) == 0;
  const int reason = errno;
  require(is_locked, ErrorCode::comm_shared_memory, "cannot lock byte {} of {}: {}", local_rank, segment_.path(),
          std::strerror(reason));
}

ProgressTable ProgressTable::create(int local_size) {
  return ProgressTable(SharedSegment::create(table_bytes(local_size), kPurpose), 0, local_size);
}

ProgressTable ProgressTable::open(const std::string& path, int local_rank, int local_size) {
  return ProgressTable(SharedSegment::open(path, table_bytes(local_size), kPurpose), local_rank, local_size);
}

void ProgressTable::wake(int local_rank) const {
  RankEntry& c = entry(local_rank);
  c.doorbell.fetch_add(1);
  if (c.sleeping.load() != 0) futex(c.doorbell, FUTEX_WAKE, INT_MAX, nullptr);
}

void ProgressTable::wake_others() const {
  for (int r = 0; r < local_size_; ++r) {
    if (r != local_rank_) wake(r);
  }
}

bool ProgressTable::wait(std::uint32_t seen, std::chrono::nanoseconds limit) const {
  RankEntry& c = mine();
  const timespec time{static_cast<time_t>(limit.count() / 1'000'000'000),
                      static_cast<long>(limit.count() % 1'000'000'000)};
  c.sleeping.store(1);  // set before the kernel compares the doorbell, so that no wake-up is lost
  if (c.doorbell.load() == seen) futex(c.doorbell, FUTEX_WAIT, seen, &time);
  c.sleeping.store(0);
  return c.doorbell.load() != seen;
}

bool ProgressTable::is_alive(int local_rank) const {
  if (local_rank == local_rank_ || entry(local_rank).has_left.load() != 0) return true;
  struct flock lock = lock_of(local_rank);
  // If the file system does not support locks, every rank counts as alive. The watchdog's time limit still applies.
  return ::fcntl(segment_.descriptor(), F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace lockstep::comm
