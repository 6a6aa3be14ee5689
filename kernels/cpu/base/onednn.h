// oneDNN for the files that use it (*onednn.cpp): the engine, planned primitives, descriptors of layouts, and an error
// check.
//
// A primitive, its memory objects and the list of its arguments are made when planning; executing only sets their
// pointers. The op's workspace holds the scratchpads. (oneDNN itself allocates a few small objects of up to some
// hundred bytes on the heap in each execution and frees them before it returns; that cannot be turned off.)
#pragma once

#include <dnnl.hpp>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/base/blocked_layout.h"
#include "kernels/cpu/base/product.h"
#include "lockstep/dtype.h"
#include "lockstep/error.h"

namespace lockstep::cpu {

/// The process's CPU engine and its stream, in order.
const dnnl::engine& onednn_engine();
const dnnl::stream& onednn_stream();

/// "3.2.0"
std::string onednn_version();
bool onednn_has(dnnl::cpu_isa wanted);

/// Attributes of a primitive whose scratchpad the caller provides.
dnnl::primitive_attr user_scratchpad();

/// Calls `plan`, and turns an error of oneDNN into a message that `what` could not be planned.
template <typename Plan>
auto plan_with_onednn(const std::string& what, Plan&& plan) {
  try {
    return plan();
  } catch (const dnnl::error& error) {
    fail(ErrorCode::library, "oneDNN {} could not plan {}: {} (status {})", onednn_version(), what, error.what(),
         static_cast<int>(error.status));
  }
}

class PlannedPrimitive {
 public:
  struct Argument {
    int index;  // DNNL_ARG_...
    dnnl::memory::desc desc;
  };
  struct Pointer {
    int index;
    const void* data;
  };

  PlannedPrimitive() = default;
  /// Arguments without bytes (such as an unused scratchpad) are left out.
  PlannedPrimitive(const dnnl::primitive& primitive, std::initializer_list<Argument> arguments);

  explicit operator bool() const { return !arguments_.empty(); }
  /// Every argument that was passed when planning needs its pointer here; pointers of arguments left out are ignored.
  void execute(std::initializer_list<Pointer> pointers);

 private:
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

/// Copies a tensor to another layout or another type. It is empty if both sides are the same. Where oneDNN has only its
/// generic implementation, our own reorder replaces it, which takes a thirtieth of the time or less.
class PlannedReorder {
 public:
  PlannedReorder() = default;
  PlannedReorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to, const CpuContext& context);
  explicit operator bool() const { return own_ != nullptr || static_cast<bool>(primitive_); }
  void execute(const void* from, void* to, void* scratchpad);
  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }

 private:
  PlannedPrimitive primitive_;
  std::unique_ptr<Reorder> own_;  // null where the primitive is used
  std::size_t scratchpad_bytes_ = 0;
};

/// oneDNN's descriptor of a tensor in this layout, and the layout of a descriptor.
dnnl::memory::desc onednn_desc(const BlockedLayout& layout, dnnl::memory::data_type type);
BlockedLayout layout_of(const dnnl::memory::desc& desc);

/// The weights' layout for one primitive: the parameter's own if oneDNN's preferred implementation can run on it, and
/// otherwise the layout that this implementation prefers, in which case the caller reorders. `make(weights,
/// allow_empty)` returns a descriptor.
template <typename Make>
auto choose_weights(const dnnl::memory::desc& parameter, const dnnl::memory::desc& any, const Make& make) {
  const auto best = make(any, false);
  const auto direct = make(parameter, true);
  const bool as_good = direct && std::string(direct.impl_info_str()) == best.impl_info_str();
  return as_good ? direct : best;
}

/// oneDNN's name of fp32 or bf16.
dnnl::memory::data_type onednn_type(DType dtype);

}  // namespace lockstep::cpu
