// Streams and events: the order between operations that run concurrently.
// A backend without streams of its own (cpu) runs work immediately, in the caller's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace lockstep {

class Stream;

/// A point in the work of a stream or of the communicator. A new event is done.
class Event {
 public:
  virtual ~Event() = default;
  /// Marks the point that `stream` has reached. The event is done when all work before that point has run.
  virtual void record(Stream& stream) = 0;
  virtual bool is_done() const = 0;
  /// Blocks the calling thread, without spinning, until done.
  virtual void synchronize() const = 0;
  /// The seconds from when `earlier` was reached to when this event was reached. Both events must be done, and come
  /// from Backend::make_timing_event().
  virtual double seconds_since(const Event& earlier) const = 0;
  /// The library's own handle (cudaEvent_t); null for an event of the host.
  virtual void* native() const { return nullptr; }
};

/// Work that a host thread runs later, in the order in which it was queued.
class HostQueue {
 public:
  virtual ~HostQueue() = default;
  /// `what` names the work, such as "conv2d.forward"; `work` receives the stream on which it runs.
  virtual void enqueue(std::string_view what, std::function<void(Stream&)> work) = 0;
};

/// If several streams have work that is ready, the work of a high-priority stream runs first.
enum class StreamPriority : std::uint8_t { normal, high };

class Stream {
 public:
  virtual ~Stream() = default;
  /// Work that is queued on the stream after this call waits for `event`. A stream without a queue blocks the caller.
  virtual void wait(const Event& event) = 0;
  /// The same for an event that is recorded outside of captured graphs: each launch of a graph that this call is a part
  /// of waits for what was last recorded.
  virtual void wait_in_each_launch(const Event& event) { wait(event); }
  /// Blocks the calling thread until all work queued so far is done.
  virtual void synchronize() = 0;
  /// cudaStream_t; null: work is done when its call returns.
  virtual void* native() const { return nullptr; }
  /// The queue of a stream whose op calls are made later by a host thread. Null: calls reach the backend immediately.
  virtual HostQueue* host_queue() { return nullptr; }
};

/// A part of a step that queues the same work on a stream each time. A device that can do so captures the work as a
/// graph and then launches the graph as a whole. Elsewhere the calls are made each time.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  /// Launches the graph, or calls `work`, which queues the same work on `stream` each time. If `work` throws, nothing
  /// is captured, and the exception is passed on.
  template <typename Work>
  void run(Stream& stream, const Work& work) {
    if (!begin(stream)) return;
    try {
      work();
    } catch (...) {
      abandon(stream);
      throw;
    }
    end(stream);
  }

 protected:
  /// True: the caller queues the work on `stream` and then calls end(), or abandon() if that fails. False: the graph
  /// was launched.
  virtual bool begin(Stream& stream) = 0;
  virtual void end(Stream& stream) = 0;
  virtual void abandon(Stream& stream) noexcept = 0;
};

/// Captures nothing: the calls are made each time.
class EagerGraph final : public CapturedGraph {
  bool begin(Stream&) override { return true; }
  void end(Stream&) override {}
  void abandon(Stream&) noexcept override {}
};

/// An event between threads of the host. The cpu backend and host communicators use it.
class HostEvent final : public Event {
 public:
  void record(Stream&) override { complete(); }
  bool is_done() const override { return done_.load(std::memory_order_acquire); }
  void synchronize() const override { done_.wait(false, std::memory_order_acquire); }
  /// Marks the event as pending. Called before work is handed to another thread.
  void begin() { done_.store(false, std::memory_order_release); }
  void complete() {
    reached_ = std::chrono::steady_clock::now();
    done_.store(true, std::memory_order_release);
    done_.notify_all();
  }
  double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(reached_ - dynamic_cast<const HostEvent&>(earlier).reached_).count();
  }

 private:
  std::atomic<bool> done_{true};
  std::chrono::steady_clock::time_point reached_;
};

}  // namespace lockstep
