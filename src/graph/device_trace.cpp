#include "graph/device_trace.h"

#include <algorithm>

namespace lockstep::graph {

namespace {
constexpr int kRounds = 8;
}

std::unique_ptr<DeviceTrace> DeviceTrace::make(Backend& backend, Stream& stream) {
  if (backend.memory_space() == MemorySpace::host) return nullptr;
  trace::Row* row = trace::add_row("device");
  return row ? std::unique_ptr<DeviceTrace>(new DeviceTrace(backend, stream, row)) : nullptr;
}

DeviceTrace::DeviceTrace(Backend& backend, Stream& stream, trace::Row* row)
    : backend_(backend), stream_(stream), row_(row), origin_(backend.make_timing_event()) {
  // An event is reached some time after it was recorded. Of several events on an idle stream, the one that was reached
  // soonest gives the best time of the origin, which is still a little early.
  const auto event = backend.make_timing_event();
  for (int i = 0; i < kRounds; ++i) {
    Event& reached = i == 0 ? *origin_ : *event;
    stream.synchronize();
    const trace::Clock::time_point before = trace::Clock::now();
    reached.record(stream);
    reached.synchronize();
    const trace::Clock::time_point origin = before - since_origin(reached);
    origin_time_ = i == 0 ? origin : std::max(origin_time_, origin);
  }
}

trace::Clock::duration DeviceTrace::since_origin(const Event& event) const {
  return std::chrono::duration_cast<trace::Clock::duration>(
      std::chrono::duration<double>(event.seconds_since(*origin_)));
}

void DeviceTrace::begin_step(int slot) {
  current_ = slot;
  record(slots_[static_cast<std::size_t>(slot)]);
}

void DeviceTrace::flush() {
  record(slots_[static_cast<std::size_t>(1 - current_)]);
  record(slots_[static_cast<std::size_t>(current_)]);
}

void DeviceTrace::begin(trace::Kind kind, const std::string& name) {
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  if (slot.n_used == slot.spans.size())
    slot.spans.push_back({.begin = backend_.make_timing_event(), .end = backend_.make_timing_event()});
  Span& span = slot.spans[slot.n_used];
  span.kind = kind;
  span.name = &name;
  span.begin->record(stream_);
}

void DeviceTrace::end() {
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  slot.spans[slot.n_used++].end->record(stream_);
}

void DeviceTrace::record(Slot& slot) {
  for (std::size_t i = 0; i < slot.n_used; ++i) {
    const Span& span = slot.spans[i];
    trace::record(row_, span.kind, *span.name, origin_time_ + since_origin(*span.begin),
                  origin_time_ + since_origin(*span.end));
  }
  slot.n_used = 0;
}

}  // namespace lockstep::graph
