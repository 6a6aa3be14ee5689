// The communication thread of a rank: it makes all MPI calls, sums, and watches.
//
// It runs lanes in turn. A lane is one ordered stream of collectives; lanes do not wait for each other. When no lane
// can go on the thread sleeps on the board's doorbell: until it is rung, or, while something must be polled, for 20 us
// growing to 200 us. So it takes no core from the work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/board.h"
#include "comm/launch.h"
#include "comm/mpi_calls.h"
#include "comm/ranks.h"
#include "comm/routine.h"

namespace lockstep::comm {

class Watch;

class Lane {
 public:
  virtual ~Lane() = default;
  /// Who learns that the job is lost: a caller that will throw, nobody now, or only an event, which cannot say it.
  enum class Told : std::uint8_t { caller, nobody, event };
  /// Gives up what was posted to this lane (a peer is lost, MPI failed). On the communication thread, perhaps
  /// repeatedly.
  virtual Told give_up(const std::exception_ptr& reason) = 0;

  /// About every 100 ms: a lane whose collectives run on a device sees how far that is. Throws what ends the job.
  virtual void look() {}

  int number() const { return number_; }
  /// The collective that this rank is in, if is_on: it may be waiting for others.
  struct Waiting {
    std::chrono::steady_clock::time_point since;
    bool is_on = false;
    std::uint64_t sequence = 0;  // from 1
    std::string_view label;
  };
  const Waiting& waiting() const { return waiting_; }

 protected:
  friend class CommunicationThread;
  /// This rank has come to its next collective: noted on the board, and watched until leave().
  void enter(std::string_view label);
  /// The same where collectives are not seen one by one: this is the so many-th of the lane, from 1.
  void enter(std::string_view label, std::uint64_t number);
  void leave() { waiting_.is_on = false; }
  /// Such a lane, once it is removed: so many collectives it had, the same on all ranks. The next lane of its number
  /// counts on from there, and where ranks did not agree it would wait for what has been.
  void end_at(std::uint64_t number);
  /// From inside an awaited predicate that did some work although it is not yet true.
  void note_progress() { moved_ = true; }

  Routine routine_;
  Board* board_ = nullptr;

 private:
  int number_ = 0;
  std::uint64_t n_before_ = 0;  // collectives of the lanes that had this number before
  Waiting waiting_;
  char label_[kLabelBytes] = {};
  bool moved_ = false;
};

class CommunicationThread {
 public:
  /// Starts MPI, the tables and the board, on the new thread; throws what that throws.
  CommunicationThread(int* argc, char*** argv, const Launch& launch, double watchdog_seconds);
  /// Stops the thread, with MPI_Finalize on it. All ranks must have agreed to end (a barrier).
  ~CommunicationThread();

  const RankTable& ranks() const { return ranks_; }
  Board& board() { return *board_; }
  MpiCalls& mpi() { return *mpi_; }

  /// Adds a lane (kept by the caller), numbered alike on all ranks as they add and remove in the same order.
  void add(Lane& lane);
  void remove(Lane& lane);
  /// After something was posted to a lane.
  void ring() { board_->ring(board_->local_rank()); }

  /// Throws the reason once a lane was given up.
  void throw_if_failed();
  bool has_failed() const { return has_failed_.load(); }

  /// Ends all ranks of the job; the process ends within 5 seconds even if MPI hangs.
  [[noreturn]] void abort(int exit_status);

 private:
  void start(int* argc, char*** argv, const Launch& launch, double watchdog_seconds);
  void make_tables();
  void make_board();
  void run();
  /// One turn of all lanes; true when any of them went on.
  bool step_lanes(bool& must_poll);
  void look_around();
  void give_up(const std::exception_ptr& reason);
  void tell_lanes();
  void sleep(std::uint32_t seen, bool must_poll);

  static constexpr int kNoAbort = -1;

  std::unique_ptr<MpiCalls> mpi_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Watch> watch_;
  RankTable ranks_;

  std::mutex lanes_mutex_;  // held while lanes run
  std::vector<Lane*> lanes_;

  std::chrono::nanoseconds pause_{0};
  std::chrono::steady_clock::time_point next_look_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> has_failed_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::chrono::steady_clock::time_point end_by_;  // after a failure: main has until then to end the job
  std::atomic<int> abort_status_{kNoAbort};
  std::thread thread_;
};

}  // namespace lockstep::comm
