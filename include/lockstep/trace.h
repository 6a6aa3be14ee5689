// Records what each thread did when, for RUN/trace.json. If tracing is off, a span costs a branch. If it is on, a span
// costs two readings of the clock and a copy of 64 bytes to the ring buffer of its thread, which was allocated before
// the steps. A full ring drops its oldest events and counts them. Times are those of the host; work that a device runs
// later does not appear. An attached profiler gets the same spans, and can relate them to the work of a device.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::trace {

using Clock = std::chrono::steady_clock;

enum class Kind : std::uint8_t { step, forward, backward, update, wait, all_reduce, read, evaluation, checkpoint };
const char* name(Kind kind);

struct Event {
  Clock::time_point begin, end;
  std::int64_t number = -1;  // of a step or batch, appended to the name; -1: none
  Kind kind = Kind::step;
  char name[39] = {};  // longer names are truncated
};
static_assert(sizeof(Event) == 64);

/// The events of one thread or of one ordered stream of work. Within a row, they nest.
class Row;

/// Whether spans are recorded or passed to a profiler.
inline std::atomic<bool> is_on{false};

/// Ranges of a profiler. pop() ends the last range of the calling thread.
struct Profiler {
  void (*push)(const char* name) = nullptr;
  void (*pop)() = nullptr;
};
/// To be called once, before the first span.
void attach(const Profiler& profiler);

/// To be called once, before the threads and communicators to be traced are created. Each row keeps `events_per_row`
/// events. The row of the calling thread is "main".
void start(std::size_t events_per_row);

/// Adds a row for record(), before the first step. Null if tracing is off.
Row* add_row(const std::string& name);
/// Does nothing if `row` is null.
void record(Row* row, Kind kind, std::string_view name, Clock::time_point begin, Clock::time_point end);

/// Assigns a row to this thread: an existing row called `name` that no thread uses, or a new one.
class ThreadRow {
 public:
  explicit ThreadRow(const std::string& name);
  ~ThreadRow();
  ThreadRow(const ThreadRow&) = delete;
  ThreadRow& operator=(const ThreadRow&) = delete;
};

/// An event from its construction to its destruction, in the row of the calling thread and in the attached profiler.
class Span {
 public:
  /// `name` must outlive the span.
  Span(Kind kind, std::string_view name, std::int64_t number = -1) {
    if (is_on.load(std::memory_order_relaxed)) [[unlikely]]
      begin(kind, name, number);
  }
  ~Span() {
    if (is_open_) [[unlikely]]
      end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void begin(Kind kind, std::string_view name, std::int64_t number);
  void end() const;

  bool is_open_ = false, is_pushed_ = false;
  Row* row_ = nullptr;
  std::string_view name_;
  std::int64_t number_ = -1;
  Clock::time_point begin_;
  Kind kind_ = Kind::step;
};

struct RowEvents {
  std::string name;
  std::vector<Event> events;    // sorted by begin; outer events before those inside them
  std::uint64_t n_dropped = 0;  // older events that the ring dropped
};
/// The current content of all rows. Other threads may keep recording.
std::vector<RowEvents> events();

}  // namespace lockstep::trace
