// Streams that are queues with one thread each, their events, and the capture of repeated work, with CUDA's behaviour.
//
// While a stream is captured (QueuedGraph), its work is stored instead of run. So is the work of a stream that waits
// for one of its events, which becomes a branch. Each launch of the graph then runs every branch on a thread of its
// own, ordered only by the captured events. What CUDA refuses is refused with the name of CUDA's error, as an Error and
// in the record ("refused ..."):
//   cudaErrorCapturedEvent              the host or a stream outside waits for an event that was last recorded here
//   cudaErrorStreamCaptureIsolation     a captured stream waits for what was recorded outside
//   cudaErrorStreamCaptureMerge         ... or in another capture
//   cudaErrorStreamCaptureUnjoined      work of a branch is left that the first stream does not wait for at the end
//   cudaErrorStreamCaptureUnsupported   the host waits for a captured stream, allocates or frees memory, or copies
//                                       from or to memory that is not pinned
// A wait for an event of the host's is refused too, since a launched graph would not wait for it again.
//
// A late stream (QueuedDevice::late_stream) runs nothing until another stream or the host waits for it, so its work
// runs after all work of other streams that does not wait for it. If two calls on different streams have no order
// between them and the first one is on the late stream, it runs last: a missing event leads to a wrong result in every
// run.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/event.h"
#include "test/support/recording.h"
#include "test/support/work_queue.h"

namespace lockstep::test {

class QueuedStream;

/// What the streams and events of a device have in common.
struct QueuedDevice {
  static constexpr int kNone = -1;
  std::atomic<int> late_stream = kNone;     // outside of captured graphs
  std::atomic<int> ignored_stream = kNone;  // no other stream waits for its events, as if they had been forgotten
  Recording recording;
  std::atomic<double> sleep_ms{0};  // before each operation of every stream
  std::mutex mutex;
  std::set<QueuedStream*> streams;
  int n_streams = 0, n_events = 0;
  Stream* op_stream = nullptr;  // the one on which op calls run, one at a time
  std::mutex op_mutex;

  std::unique_ptr<QueuedStream> make_stream();
  int next_event();
  void synchronize_all();
  [[noreturn]] void refuse(const std::string& word);
  /// Refuses a call that waits for the whole device. (A destructor only notes it: see note_while_capturing.)
  void refuse_while_capturing();
  void note_while_capturing();
};

class Capture;

/// How many operations of a stream others wait for.
class Demand {
 public:
  /// Requests the first `n` operations of the stream.
  void raise(std::size_t n);
  void wait_for(std::size_t n);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t n_ = 0;
};

/// The point that one Event::record() marks; later calls create new ones.
struct Point {
  HostEvent reached{};
  int stream = QueuedDevice::kNone;
  std::shared_ptr<Demand> demand{};  // that of its stream, whose operation `position` reaches the point
  std::size_t position = 0;
  /// Waits until the point is reached. Only outside captures.
  void wait() const;
  // In a capture:
  std::shared_ptr<Capture> capture{};
  std::size_t number = 0;
  std::vector<std::size_t> covers{};  // number of earlier operations in each branch
};

/// The work of streams between begin() and end() of a captured graph.
class Capture {
 public:
  explicit Capture(QueuedStream& first) { enter(first, {}); }

  /// Makes `stream` a branch, which begins after these numbers of operations of the other branches.
  std::size_t enter(QueuedStream& stream, const std::vector<std::size_t>& covers);
  void add_work(std::size_t branch, std::function<void()> work);
  void add_wait(std::size_t branch, const Point& point);
  /// Sets the members of a point that are used in a capture.
  void add_record(std::size_t branch, Point& point);
  /// Ends the capture for all streams. Returns false if a branch is not joined.
  bool end();
  bool is_over() const { return is_over_; }

  std::size_t n_branches() const { return branches_.size(); }
  /// Queues one launch on `streams`, one stream per branch.
  void launch(const std::vector<QueuedStream*>& streams) const;

 private:
  using Run = std::vector<HostEvent>;  // indexed by Point::number
  struct Branch {
    QueuedStream* stream;
    std::vector<std::function<void(Run&)>> steps;
    std::vector<std::size_t> covers;
    std::size_t n_work = 0;
  };
  std::vector<std::size_t> covers(std::size_t branch) const;

  std::vector<Branch> branches_;
  std::size_t n_points_ = 0;
  bool is_over_ = false;
};

enum class EventUse : std::uint8_t { order, timing };

class QueuedEvent final : public Event {
 public:
  QueuedEvent(QueuedDevice& device, EventUse use) : device_(device), use_(use), number_(device.next_event()) {}

  void record(Stream& stream) override;
  bool is_done() const override { return point_for_host()->reached.is_done(); }
  void synchronize() const override;
  double seconds_since(const Event& earlier) const override;
  void* native() const override { return const_cast<QueuedEvent*>(this); }

  int number() const { return number_; }
  std::shared_ptr<Point> point() const { return state_->get(); }

  /// The newest point. It outlives the event if a recorded step holds it.
  class State {
   public:
    std::shared_ptr<Point> get() const;
    void set(std::shared_ptr<Point> point);

   private:
    mutable std::mutex mutex_;
    std::shared_ptr<Point> point_ = std::make_shared<Point>();
  };
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  /// The point for which the host waits; refused inside a capture.
  std::shared_ptr<Point> point_for_host() const;

  QueuedDevice& device_;
  EventUse use_;
  int number_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class QueuedStream final : public Stream, public WorkQueue, public HostQueue {
 public:
  QueuedStream(QueuedDevice& device, int number);
  ~QueuedStream() override;

  void wait(const Event& event) override;
  void wait_in_each_launch(const Event& event) override;
  void synchronize() override;
  void* native() const override { return static_cast<WorkQueue*>(const_cast<QueuedStream*>(this)); }
  void put(std::function<void()> work) override;
  bool is_captured() const override { return capture_ != nullptr; }
  HostQueue* host_queue() override { return this; }
  /// Records a call of an op, which runs when the stream reaches it.
  void enqueue(std::string_view what, std::function<void(Stream&)> work) override;
  /// Waits for all work, for an operation that cannot be recorded.
  void drain();
  int number() const { return number_; }
  const std::shared_ptr<Demand>& demand() const { return demand_; }
  std::size_t n_put();

  const std::shared_ptr<Capture>& capture() const { return capture_; }
  std::size_t branch() const { return branch_; }
  void set_capture(std::shared_ptr<Capture> capture, std::size_t branch);
  /// Used by copies from or to host memory that is not pinned.
  void refuse_if_captured() const;

 private:
  void run();

  QueuedDevice& device_;
  int number_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::shared_ptr<Capture> capture_;  // null: work runs
  std::size_t branch_ = 0;
  bool is_busy_ = false, stop_ = false;
  std::size_t n_put_ = 0, n_begun_ = 0;
  const std::shared_ptr<Demand> demand_ = std::make_shared<Demand>();
  std::thread thread_;
};

/// Like CudaGraph in kernels/cuda/base/stream.h, with one eager run before the capture.
class QueuedGraph final : public CapturedGraph {
 public:
  explicit QueuedGraph(QueuedDevice& device) : device_(device) {}
  ~QueuedGraph() override;
  bool begin(Stream& stream) override;
  void end(Stream& stream) override;
  void abandon(Stream&) noexcept override;

 private:
  /// Returns false if a branch is not joined.
  bool end_capture();
  void launch(QueuedStream& stream);

  static constexpr int kEagerRuns = 1;
  QueuedDevice& device_;
  std::shared_ptr<Capture> recorded_, capturing_;
  std::vector<std::unique_ptr<QueuedStream>> branches_;  // except the first, which is the stream of begin()
  int eager_runs_ = 0;
};

}  // namespace lockstep::test
