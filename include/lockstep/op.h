// What all planned ops have in common. An op is described, planned and executed: Backend::make takes a description,
// checks all shapes and chooses an algorithm; the memory that the op needs is then known; its calls carry only
// pointers. No op allocates, and none keeps pointers between calls. Each op has a header in include/lockstep/ops/ with
// its formula, its description (a struct with named fields) and the arguments of its calls. Letters:
// include/lockstep/shape.h. The gradient of `x` is `dx`. All pointers are memory of the op's backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>

#include "lockstep/event.h"

namespace lockstep {

/// What backward does with the memory of a gradient.
enum class GradientMode : std::uint8_t { skip, overwrite, accumulate };

/// How an activation is laid out in memory. Interfaces, tests and files use nhwc; inside a graph a backend may ask for
/// channel blocks of 16, (N, C/16, H, W, 16).
enum class Layout : std::uint8_t { nhwc, nchw16c };
constexpr std::string_view name(Layout layout) { return layout == Layout::nhwc ? "nhwc" : "nchw16c"; }

/// Bytes an op needs in addition to its arguments. A workspace lives for one call, `saved` from forward to backward.
struct OpMemoryRequirements {
  std::size_t forward_workspace_bytes = 0;
  std::size_t backward_workspace_bytes = 0;
  std::size_t saved_bytes = 0;
};

struct OpMemory {
  void* workspace = nullptr;  // aligned as Memory is; contents undefined on entry
  void* saved = nullptr;
};

class Op {
 public:
  virtual ~Op() = default;
  virtual OpMemoryRequirements memory_requirements() const { return {}; }
  /// One line for `lockstep plan`: the algorithm chosen, and what is fused.
  virtual std::string describe() const = 0;

 protected:
  /// Every call of an op passes through here. It runs immediately, in the caller's thread. If the stream has a host
  /// queue, a host thread runs it later instead, with a copy of the arguments. `what` is "conv2d.forward".
  template <typename Self, typename Args>
  void submit(std::string_view what, void (Self::*call)(const Args&, const OpMemory&, Stream&), const Args& args,
              const OpMemory& memory, Stream& stream) {
    Self* self = static_cast<Self*>(this);
    if (HostQueue* queue = stream.host_queue())
      queue->enqueue(what, [=](Stream& inner) { (self->*call)(args, memory, inner); });
    else
      (self->*call)(args, memory, stream);
  }
};

// The calls of most ops. `Calls` has a struct with the arguments of each: Forward, Forward and Backward, or Apply. They
// are names of the op too. The name of a call is "conv2d.forward".

template <typename Description, typename Calls>
class ForwardOp : public Op, public Calls {
 public:
  void forward(const typename Calls::Forward& args, const OpMemory& memory, Stream& stream) {
    static const std::string name = std::string(Description::kName) + ".forward";
    submit(name, &ForwardOp::run_forward, args, memory, stream);
  }

 private:
  virtual void run_forward(const typename Calls::Forward& args, const OpMemory& memory, Stream& stream) = 0;
};

template <typename Description, typename Calls>
class TwoWayOp : public ForwardOp<Description, Calls> {
 public:
  void backward(const typename Calls::Backward& args, const OpMemory& memory, Stream& stream) {
    static const std::string name = std::string(Description::kName) + ".backward";
    this->submit(name, &TwoWayOp::run_backward, args, memory, stream);
  }

 private:
  virtual void run_backward(const typename Calls::Backward& args, const OpMemory& memory, Stream& stream) = 0;
};

template <typename Description, typename Calls>
class ApplyOp : public Op, public Calls {
 public:
  void apply(const typename Calls::Apply& args, const OpMemory& memory, Stream& stream) {
    static const std::string name = std::string(Description::kName) + ".apply";
    submit(name, &ApplyOp::run_apply, args, memory, stream);
  }

 private:
  virtual void run_apply(const typename Calls::Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

/// An op as a backend plans it: its description, and what the backend knows about the device.
template <typename Description, typename Context>
class PlannedOp : public Description::Op {
 public:
  PlannedOp(const Description& description, const Context& context) : d_(description), context_(context) {}

 protected:
  Description d_;
  Context context_;
};

/// A request for the op of a description, whose type is erased.
struct OpRequest {
  const std::type_info& type;
  std::string_view name;  // "conv2d"
  const void* description;
};

/// How a parameter is laid out in memory. Files hold the canonical form: row-major, no padding, fp32.
/// Padding, if any, is zero after pack() and stays zero: gradients write zeros there.
class ParameterLayout {
 public:
  virtual ~ParameterLayout() = default;
  virtual std::size_t n_elements() const = 0;  // padding included
  virtual void pack(std::span<const float> canonical, float* parameter) const = 0;
  virtual void unpack(const float* parameter, std::span<float> canonical) const = 0;
  virtual std::string describe() const = 0;
};

}  // namespace lockstep
