// The progress table of a node: a small shared segment in which each rank of the node publishes how far it is, and
// through which ranks wake each other.
//
// A rank writes only its own entry, with two exceptions: others increment its doorbell, and all increment the leader's
// n_reporters. Counters grow and are never reset, so the progress of one collective cannot be mistaken for another's.
// A channel is one ordered stream of collectives: the control channel, and one channel per communicator.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/shared_segment.h"

namespace lockstep::comm {

inline constexpr int kMaxChannels = 16;
inline constexpr std::size_t kLabelBytes = 64;

/// Copies `text` to `label` as a C string, truncated to fit. Returns the copied part.
std::string_view copy_label(std::string_view text, char (&label)[kLabelBytes]);

struct ChannelProgress {
  std::atomic<std::uint64_t> begun{0};     // collectives that this rank has reached
  std::atomic<std::uint64_t> reduced{0};   // chunks in which it has summed its shard, over all collectives
  std::atomic<std::uint64_t> gathered{0};  // chunks whose total over nodes is in its memory (leader)
  std::atomic<std::uint64_t> copied{0};    // collectives whose result it has copied from the leader's memory
  char label[kLabelBytes] = {};            // of the last collective begun; used in messages only
};

struct alignas(64) RankEntry {
  std::atomic<std::uint32_t> doorbell{0};
  std::atomic<std::uint32_t> sleeping{0};
  std::atomic<std::int64_t> heartbeat_ns{0};   // steady clock of the node, written by the communication thread
  std::atomic<std::uint32_t> has_left{0};      // it has finished normally, so its process may end
  std::atomic<std::uint32_t> has_reported{0};  // it has printed the reason for its failure
  std::atomic<std::uint32_t> n_reporters{0};   // ranks of the node that asked is_first_to_report(); leader's entry only
  ChannelProgress channels[kMaxChannels];
};

class ProgressTable {
 public:
  /// The node's leader calls `create`; the others call `open` with the leader's path.
  static ProgressTable create(int local_size);
  static ProgressTable open(const std::string& path, int local_rank, int local_size);

  const std::string& path() const { return segment_.path(); }
  void unlink() { segment_.unlink(); }

  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  RankEntry& entry(int local_rank) const { return entries_[local_rank]; }
  RankEntry& mine() const { return entries_[local_rank_]; }

  /// Wakes the communication thread of that rank, or those of all other ranks of the node.
  void wake(int local_rank) const;
  void wake_others() const;
  std::uint32_t doorbell() const { return mine().doorbell.load(); }
  /// Sleeps until this rank's doorbell differs from `seen` or the time is up. True if it differs.
  bool wait(std::uint32_t seen, std::chrono::nanoseconds limit) const;

  /// False once the process has ended without setting has_left. The kernel then drops the lock that the process holds
  /// on the segment. (A process id would not work across containers, nor for a process that is still a zombie.)
  bool is_alive(int local_rank) const;
  /// True for the first process of the node that asks.
  bool is_first_to_report() const { return entry(0).n_reporters.fetch_add(1) == 0; }

 private:
  ProgressTable(SharedSegment segment, int local_rank, int local_size);

  SharedSegment segment_;
  RankEntry* entries_ = nullptr;
  int local_rank_ = 0;
  int local_size_ = 1;
};

}  // namespace lockstep::comm
