#include "lockstep/trace.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

namespace lockstep::trace {

class Row {
 public:
  Row(std::string row_name, std::size_t capacity)
      : name(std::move(row_name)), capacity_(capacity), ring_(std::make_unique_for_overwrite<Event[]>(capacity)) {}

  void add(const Event& event) {
    const std::lock_guard lock(mutex_);
    ring_[n_added_++ % capacity_] = event;
  }

  RowEvents events() {
    const std::lock_guard lock(mutex_);
    const std::uint64_t n_kept = std::min<std::uint64_t>(n_added_, capacity_);
    RowEvents out{.name = name, .events = {}, .n_dropped = n_added_ - n_kept};
    out.events.reserve(n_kept);
    for (std::uint64_t i = out.n_dropped; i < n_added_; ++i) out.events.push_back(ring_[i % capacity_]);
    return out;
  }

  const std::string name;
  bool has_thread = false;  // guarded by the registry

 private:
  std::mutex mutex_;  // contended only by events(), so the thread that records never waits otherwise
  std::uint64_t n_added_ = 0;
  std::size_t capacity_;
  std::unique_ptr<Event[]> ring_;  // only the part that was filled is touched and takes up memory
};

namespace {

struct Registry {
  std::mutex mutex;
  std::size_t events_per_row = 0;
  std::vector<std::unique_ptr<Row>> rows;
};
Registry& registry() {
  static Registry all;
  return all;
}
thread_local Row* this_threads_row = nullptr;

std::atomic<bool> is_recording{false};
Profiler profiler;  // read only after has_profiler was seen to be true
std::atomic<bool> has_profiler{false};

Row* add_row_locked(const std::string& name) {
  Registry& r = registry();
  r.rows.push_back(std::make_unique<Row>(name, r.events_per_row));
  return r.rows.back().get();
}

Event make_event(Kind kind, std::string_view name, std::int64_t number, Clock::time_point begin,
                 Clock::time_point end) {
  Event event{.begin = begin, .end = end, .number = number, .kind = kind};
  std::memcpy(event.name, name.data(), std::min(name.size(), sizeof(event.name) - 1));
  return event;
}

}  // namespace

const char* name(Kind kind) {
  constexpr const char* kNames[] = {"step",       "forward", "backward",   "update",    "wait",
                                    "all-reduce", "read",    "evaluation", "checkpoint"};
  return kNames[static_cast<std::size_t>(kind)];
}

void start(std::size_t events_per_row) {
  const std::lock_guard lock(registry().mutex);
  registry().events_per_row = events_per_row;
  this_threads_row = add_row_locked("main");
  this_threads_row->has_thread = true;
  is_recording.store(true);
  is_on.store(true);
}

void attach(const Profiler& its_ranges) {
  if (has_profiler.load()) return;
  profiler = its_ranges;
  has_profiler.store(true);
  is_on.store(true);
}

Row* add_row(const std::string& name) {
  if (!is_recording.load()) return nullptr;
  const std::lock_guard lock(registry().mutex);
  return add_row_locked(name);
}

void record(Row* row, Kind kind, std::string_view name, Clock::time_point begin, Clock::time_point end) {
  if (row != nullptr) [[unlikely]]
    row->add(make_event(kind, name, -1, begin, end));
}

ThreadRow::ThreadRow(const std::string& name) {
  if (!is_recording.load()) return;
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto free =
      std::ranges::find_if(r.rows, [&](const auto& row) { return row->name == name && !row->has_thread; });
  this_threads_row = free != r.rows.end() ? free->get() : add_row_locked(name);
  this_threads_row->has_thread = true;
}

ThreadRow::~ThreadRow() {
  if (this_threads_row == nullptr) return;
  const std::lock_guard lock(registry().mutex);
  this_threads_row->has_thread = false;
  this_threads_row = nullptr;
}

void Span::begin(Kind kind, std::string_view name, std::int64_t number) {
  is_open_ = true;
  row_ = this_threads_row;
  name_ = name;
  number_ = number;
  kind_ = kind;
  is_pushed_ = has_profiler.load();
  if (is_pushed_) {
    char text[64];
    const auto length = static_cast<int>(std::min<std::size_t>(name.size(), 40));
    if (number < 0)
      std::snprintf(text, sizeof(text), "%.*s", length, name.data());
    else
      std::snprintf(text, sizeof(text), "%.*s %lld", length, name.data(), static_cast<long long>(number));
    profiler.push(text);
  }
  begin_ = Clock::now();
}

void Span::end() const {
  if (row_ != nullptr) row_->add(make_event(kind_, name_, number_, begin_, Clock::now()));
  if (is_pushed_) profiler.pop();
}

std::vector<RowEvents> events() {
  const std::lock_guard lock(registry().mutex);
  std::vector<RowEvents> out;
  for (const auto& row : registry().rows) {
    out.push_back(row->events());
    std::ranges::stable_sort(out.back().events, [](const Event& a, const Event& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  }
  return out;
}

}  // namespace lockstep::trace
