// The row "device" of trace.json: when a device with streams of its own executed the queued work, with a span for each
// layer's forward and backward pass and each part of the update. Events of the compute stream separate the spans. They
// are read when their step has finished, and converted to the host's clock at moments when the stream is idle.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "lockstep/backend.h"
#include "lockstep/trace.h"

namespace lockstep::graph {

class DeviceTrace final : public Observer {
 public:
  /// Null if no trace is recorded, or if work runs inside its call, so that the host's spans already show everything.
  static std::unique_ptr<DeviceTrace> make(Backend& backend, Stream& stream);

  /// A step begins in `slot`. The step that used the slot before has finished, and its spans are recorded now.
  void begin_step(int slot);
  /// The stream is idle: records all remaining spans.
  void flush();

  void begin(trace::Kind kind, const std::string& name) override;
  void end() override;

 private:
  DeviceTrace(Backend& backend, Stream& stream, trace::Row* row);
  /// `name` must outlive the trace's spans.
  struct Span {
    trace::Kind kind = trace::Kind::forward;
    const std::string* name = nullptr;
    std::unique_ptr<Event> begin, end;
  };
  struct Slot {
    std::vector<Span> spans;  // created when first needed, and reused
    std::size_t n_used = 0;
  };
  void record(Slot& slot);
  trace::Clock::duration since_origin(const Event& event) const;

  Backend& backend_;
  Stream& stream_;
  trace::Row* row_;
  std::unique_ptr<Event> origin_;
  trace::Clock::time_point origin_time_;  // when origin_ was reached
  std::array<Slot, 2> slots_;
  int current_ = 0;
};

}  // namespace lockstep::graph
