// The watchdog: reports which rank is missing when a collective does not end.
//
// A peer on this node whose process has ended is reported within a second. A collective that takes longer than the
// limit (comm.watchdog_seconds) ends the job. The progress of local ranks is read from the node's progress table. For
// ranks of other nodes, the leader of a node sends a query to each of them as a control message. Their communication
// threads answer it whatever their main threads are doing; a rank that does not answer is reported as such.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi_calls.h"
#include "comm/progress_table.h"
#include "comm/topology.h"

namespace lockstep::comm {

class Channel;

class Watchdog {
 public:
  Watchdog(ProgressTable& table, MpiCalls& mpi, const RankTable& ranks, double limit_seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// May be called from any thread.
  void set_limit(double seconds) { limit_seconds_.store(seconds); }
  /// Called about every 100 ms. Throws comm_rank_died, comm_rank_lost or out_of_memory.
  void check(std::span<Channel* const> channels);

 private:
  struct Reply {
    std::uint64_t begun = 0;
    char label[kLabelBytes] = {};
  };

  void answer_queries();
  void send_queries(const Channel& channel);
  void check_channel(const Channel& channel);
  void check_processes(const Channel& channel);
  bool was_queried(const Channel& channel) const;
  /// "'bucket 2 of 9' (collective 412)": its label, and its number on this channel.
  static std::string collective(const Channel& channel);
  /// "rank 2 on node1, which has not reached it ...; ..." for every rank that `channel` waits for.
  std::string missing(const Channel& channel) const;
  std::string describe(int rank, const Reply& state, const Channel& channel) const;

  ProgressTable& table_;
  MpiCalls& mpi_;
  const RankTable& ranks_;
  std::atomic<double> limit_seconds_;
  const std::uint64_t n_killed_before_;

  // The query of another node, and the reply to it.
  MpiRequest incoming_query_request_, outgoing_reply_request_;
  int incoming_query_ = 0;  // the number of a channel, like each query
  Reply outgoing_reply_;

  // What this leader has queried: `queried_channel_` at `queried_sequence_`. One query and one reply per rank.
  int queried_channel_ = -1;
  std::uint64_t queried_sequence_ = 0;
  int query_ = 0;
  std::vector<MpiRequest> query_requests_, reply_requests_;
  std::vector<Reply> replies_;
};

}  // namespace lockstep::comm
