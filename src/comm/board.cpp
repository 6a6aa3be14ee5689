#include "comm/board.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

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
constexpr const char* kPurpose = "the board of the node";

std::size_t board_bytes(int local_size) { return sizeof(RankCell) * static_cast<std::size_t>(local_size); }

struct flock lock_of(int local_rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = local_rank;
  lock.l_len = 1;
  return lock;
}

/// Not the private form: the word lies in memory of several processes.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* limit) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, limit, nullptr, 0);
}

}  // namespace

Board::Board(SharedSegment segment, int local_rank, int local_size)
    : segment_(std::move(segment)), local_rank_(local_rank), local_size_(local_size) {
  segment_.reserve(0, board_bytes(local_size));
  // The file is zero-filled, which is the initial value of every member: nothing is constructed over a neighbour's
  // cell.
  cells_ = reinterpret_cast<RankCell*>(segment_.data());
  struct flock lock = lock_of(local_rank);
  require(::fcntl(segment_.descriptor(), F_SETLK, &lock) == 0, ErrorCode::comm_shared_memory,
          "cannot lock byte {} of {}: {}", local_rank, segment_.path(), std::strerror(errno));
}

Board Board::create(int local_size) {
  return Board(SharedSegment::create(board_bytes(local_size), kPurpose), 0, local_size);
}

Board Board::open(const std::string& path, int local_rank, int local_size) {
  return Board(SharedSegment::open(path, board_bytes(local_size), kPurpose), local_rank, local_size);
}

void Board::ring(int local_rank) const {
  RankCell& c = cell(local_rank);
  c.doorbell.fetch_add(1);
  if (c.sleeping.load() != 0) futex(c.doorbell, FUTEX_WAKE, INT_MAX, nullptr);
}

void Board::ring_others() const {
  for (int r = 0; r < local_size_; ++r) {
    if (r != local_rank_) ring(r);
  }
}

bool Board::wait(std::uint32_t seen, std::chrono::nanoseconds limit) const {
  RankCell& c = mine();
  const timespec time{static_cast<time_t>(limit.count() / 1'000'000'000),
                      static_cast<long>(limit.count() % 1'000'000'000)};
  c.sleeping.store(1);  // before the look at the doorbell that the kernel takes: a ring is then never missed
  if (c.doorbell.load() == seen) futex(c.doorbell, FUTEX_WAIT, seen, &time);
  c.sleeping.store(0);
  return c.doorbell.load() != seen;
}

bool Board::is_alive(int local_rank) const {
  if (local_rank == local_rank_ || cell(local_rank).has_left.load() != 0) return true;
  struct flock lock = lock_of(local_rank);
  // Where the file system cannot tell, nobody is called dead: the watch's time limit remains.
  return ::fcntl(segment_.descriptor(), F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace lockstep::comm
