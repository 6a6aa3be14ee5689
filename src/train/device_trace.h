// The row "device" of trace.json: when a device with streams of its own did what the host's spans gave it, a span for
// each layer's forward and backward and each part of the update. Events of the compute stream stand between them; they
// are read when their step is over, and put on the host's clock by moments at which the stream was idle.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "lockstep/backend.h"
#include "lockstep/trace.h"

namespace lockstep::train {

class DeviceTrace final : public graph::Observer {
 public:
  /// Null where no trace is taken, or work is over when its call returns, so that the host's spans tell it all.
  static std::unique_ptr<DeviceTrace> make(Backend& backend, Stream& stream);

  /// The step that begins, after the one before the last was waited for, whose spans are recorded now.
  void begin_step(int slot);
  /// Once the stream is idle: records what is left.
  void flush();

  void begin(trace::Kind kind, const std::string& name) override;
  void end() override;

 private:
  DeviceTrace(Backend& backend, Stream& stream, trace::Row* row);
  /// `name` outlives the trace's spans.
  struct Span {
    trace::Kind kind = trace::Kind::forward;
    const std::string* name = nullptr;
    std::unique_ptr<lockstep::Event> begin, end;
  };
  struct Slot {
    std::vector<Span> spans;  // made when first wanted, and kept
    std::size_t n_used = 0;
  };
  void record(Slot& slot);
  trace::Clock::duration since_origin(const lockstep::Event& event) const;

  Backend& backend_;
  Stream& stream_;
  trace::Row* row_;
  std::unique_ptr<lockstep::Event> origin_;
  trace::Clock::time_point origin_time_;  // when origin_ was reached
  std::array<Slot, 2> slots_;
  int current_ = 0;
};

}  // namespace lockstep::train
