// What each thread did when, for RUN/trace.json. Off, a span costs a branch. On, it costs two readings of the clock and
// a copy of 64 bytes into the ring of its thread, whose memory was taken before: nothing is allocated in a step. A full
// ring loses its oldest events, and counts them. Times are of the host: work that a device runs later is not seen. A
// profiler that was attached gets the same spans, and can tell which of them gave a device its work.
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
  std::int64_t number = -1;  // of a step or batch, part of the name; -1: none
  Kind kind = Kind::step;
  char name[39] = {};  // cut where it is longer
};
static_assert(sizeof(Event) == 64);

/// The events of one thread, or of one ordered stream of work; inside a row they nest.
class Row;

/// Spans are recorded, or given to a profiler.
inline std::atomic<bool> is_on{false};

/// Ranges of a profiler: what pop() ends is the calling thread's last one.
struct Profiler {
  void (*push)(const char* name) = nullptr;
  void (*pop)() = nullptr;
};
/// Once, before the spans that it is to see.
void attach(const Profiler& profiler);

/// Once, before the threads and communicators that are to be seen: from now on each row keeps `events_per_row`. The
/// calling thread's row is "main".
void start(std::size_t events_per_row);

/// A row for record(), to be taken before the steps; null when off.
Row* add_row(const std::string& name);
/// Nothing happens when `row` is null.
void record(Row* row, Kind kind, std::string_view name, Clock::time_point begin, Clock::time_point end);

/// Spans of this thread go to a row of its own: one called `name` that no thread has now, or a new one.
class ThreadRow {
 public:
  explicit ThreadRow(const std::string& name);
  ~ThreadRow();
  ThreadRow(const ThreadRow&) = delete;
  ThreadRow& operator=(const ThreadRow&) = delete;
};

/// From its construction to its end, in the calling thread's row, if it has one, and in the profiler, if there is one.
class Span {
 public:
  /// `name` outlives it.
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
  std::vector<Event> events;    // in the order of their beginnings, what contains others before them
  std::uint64_t n_dropped = 0;  // older ones that the ring lost
};
/// What every row holds now; other threads may go on.
std::vector<RowEvents> events();

}  // namespace lockstep::trace
