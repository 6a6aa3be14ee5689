// The board of a node: a small shared segment in which each of its ranks says how far it is, and is woken.
//
// A rank writes its own cell only, but for the doorbell, which others ring, and the count of speakers. Counters grow
// and are never reset, so a flag of one collective cannot be taken for another's. A lane is one stream of collectives
// (control, each communicator).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/shared_segment.h"

namespace lockstep::comm {

inline constexpr int kMaxLanes = 16;
inline constexpr std::size_t kLabelBytes = 64;

struct LaneCell {
  std::atomic<std::uint64_t> begun{0};     // collectives that this rank has come to
  std::atomic<std::uint64_t> reduced{0};   // pieces that it has summed, over all collectives
  std::atomic<std::uint64_t> gathered{0};  // chunks whose sum over nodes lies in its memory (leader)
  std::atomic<std::uint64_t> copied{0};    // collectives whose result it has copied from the leader's memory
  char label[kLabelBytes] = {};            // of the last one begun; read for messages only
};

struct alignas(64) RankCell {
  std::atomic<std::uint32_t> doorbell{0};
  std::atomic<std::uint32_t> sleeping{0};
  std::atomic<std::int64_t> heartbeat_ns{0};  // steady clock of the node, written by the communication thread
  std::atomic<std::uint32_t> has_left{0};     // in good order: its process may end
  std::atomic<std::uint32_t> has_spoken{0};   // it has said why it ends
  std::atomic<std::uint32_t> n_speakers{0};   // of the node, in the leader's cell: those that would say it
  LaneCell lanes[kMaxLanes];
};

class Board {
 public:
  /// `create` on the node's leader, `open` on the others with the leader's path.
  static Board create(int local_size);
  static Board open(const std::string& path, int local_rank, int local_size);

  const std::string& path() const { return segment_.path(); }
  void unlink() { segment_.unlink(); }

  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  RankCell& cell(int local_rank) const { return cells_[local_rank]; }
  RankCell& mine() const { return cells_[local_rank_]; }

  /// Wakes the communication thread of that rank, or of all others of the node.
  void ring(int local_rank) const;
  void ring_others() const;
  std::uint32_t doorbell() const { return mine().doorbell.load(); }
  /// Sleeps until this rank's doorbell is no longer `seen`, or the time is over. True when it was rung.
  bool wait(std::uint32_t seen, std::chrono::nanoseconds limit) const;

  /// False once that process has ended before it left, however it did: the kernel then drops the lock that it holds on
  /// the segment. (A process id would not tell in another container, nor of a process that nobody has waited for.)
  bool is_alive(int local_rank) const;
  /// True for the first process of the node that asks.
  bool is_first_to_speak() const { return cell(0).n_speakers.fetch_add(1) == 0; }

 private:
  Board(SharedSegment segment, int local_rank, int local_size);

  SharedSegment segment_;
  RankCell* cells_ = nullptr;
  int local_rank_ = 0;
  int local_size_ = 1;
};

}  // namespace lockstep::comm
