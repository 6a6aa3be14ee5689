// Streams and events: the order between work that runs beside each other.
// A backend without streams of its own (cpu) runs work at once, in the caller's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace lockstep {

class Stream;

/// A point in the work of a stream or of the communicator. Begins as "done".
class Event {
 public:
  virtual ~Event() = default;
  /// Marks the point that `stream` has reached; is_done() when all before it ran.
  virtual void record(Stream& stream) = 0;
  virtual bool is_done() const = 0;
  /// Blocks the calling thread, without spinning, until done.
  virtual void synchronize() const = 0;
  /// Of Backend::make_timing_event(), both done: what lies between the moments at which they were reached.
  virtual double seconds_since(const Event& earlier) const = 0;
  /// The library's own handle, for those that share it (cudaEvent_t); null: an event of the host's.
  virtual void* native() const { return nullptr; }
};

/// Work that a host thread does later, in the order in which it was given.
class HostQueue {
 public:
  virtual ~HostQueue() = default;
  /// `what` names the work, such as "conv2d.forward"; `work` is given the stream on which it runs.
  virtual void enqueue(std::string_view what, std::function<void(Stream&)> work) = 0;
};

/// Work of a stream of high priority goes first where both have some that is ready.
enum class StreamPriority : std::uint8_t { normal, high };

class Stream {
 public:
  virtual ~Stream() = default;
  /// Work given later runs after `event`. A stream without queue blocks the caller.
  virtual void wait(const Event& event) = 0;
  /// Blocks the calling thread until all work given so far is done.
  virtual void synchronize() = 0;
  /// cudaStream_t; null: work is done when its call returns.
  virtual void* native() const { return nullptr; }
  /// Where calls of ops wait for a host thread that makes them later; null: calls reach the backend at once.
  virtual HostQueue* host_queue() { return nullptr; }
};

/// A part of a step that gives the same work to a stream each time. A device that can captures the work as a graph and
/// then launches the graph as a whole. Elsewhere the calls are made each time.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  /// True: the caller gives the work to `stream` and then calls end(). False: the graph was launched.
  virtual bool begin(Stream& stream) = 0;
  virtual void end(Stream& stream) = 0;
};

/// Captures nothing: the calls are made each time.
class EagerGraph final : public CapturedGraph {
 public:
  bool begin(Stream&) override { return true; }
  void end(Stream&) override {}
};

/// An event between threads of the host: what the cpu backend and host communicators use.
class HostEvent final : public Event {
 public:
  void record(Stream&) override { complete(); }
  bool is_done() const override { return done_.load(std::memory_order_acquire); }
  void synchronize() const override { done_.wait(false, std::memory_order_acquire); }
  /// Before work is handed to another thread.
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
