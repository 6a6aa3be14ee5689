// The watchdog: says who is missing when a collective does not end.
//
// A local peer whose process has ended is named within a second. A collective that takes longer than the limit
// (comm.watchdog_seconds) ends the job: local ranks are looked up on the node's board; the leader of
// a node asks the ranks of other nodes by control messages, which their communication threads answer whatever their
// main threads do. A rank that gives no answer is named as such.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/board.h"
#include "comm/mpi_calls.h"
#include "comm/ranks.h"

namespace lockstep::comm {

class Lane;

class Watch {
 public:
  Watch(Board& board, MpiCalls& mpi, const RankTable& ranks, double limit_seconds);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Every 100 ms or so. Throws comm_rank_died, or comm_rank_lost.
  void look(std::span<Lane* const> lanes);

 private:
  struct Question {
    int lane = 0;
  };
  struct Answer {
    std::uint64_t begun = 0;
    char label[kLabelBytes] = {};
  };

  void answer_questions();
  void ask(const Lane& lane);
  void collect_answers();
  void check(const Lane& lane);
  void check_processes(const Lane& lane);
  /// "rank 2 (node1), which has not come to it; ..." for every rank that keeps `lane` waiting.
  std::string missing(const Lane& lane) const;
  std::string describe(int rank, const Answer& state, const Lane& lane) const;

  Board& board_;
  MpiCalls& mpi_;
  const RankTable& ranks_;
  std::chrono::duration<double> limit_;

  MpiRequest question_request_, answer_request_;  // what others ask, what is answered to them
  Question question_;
  Answer answer_;

  // What this leader has asked: about `asked_lane_` at `asked_sequence_`; one request and one answer a rank.
  int asked_lane_ = -1;
  std::uint64_t asked_sequence_ = 0;
  Question asked_;
  std::vector<MpiRequest> asked_requests_, told_requests_;
  std::vector<Answer> told_;
};

}  // namespace lockstep::comm
