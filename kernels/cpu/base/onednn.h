// oneDNN for the ops that use it: the engine, a planned primitive, a parameter's layout, and one check of errors.
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

#include "kernels/cpu/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

/// The process's CPU engine and its stream, in order.
const dnnl::engine& onednn_engine();
const dnnl::stream& onednn_stream();

/// "3.2.0"
std::string onednn_version();
/// The instruction set that oneDNN uses here: "AVX-512" or "AVX2".
std::string onednn_instructions();
bool onednn_has(dnnl::cpu_isa wanted);

/// Attributes of a primitive whose scratchpad the caller provides.
dnnl::primitive_attr user_scratchpad();

/// Calls `plan`, and turns an error of oneDNN into a message that names `what` could not be planned.
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

/// From one layout of a tensor to another. If both are the same, `reordered` is false and nothing needs to run.
class PlannedReorder {
 public:
  PlannedReorder() = default;
  PlannedReorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to);
  explicit operator bool() const { return static_cast<bool>(primitive_); }
  void execute(const void* from, void* to, void* scratchpad);
  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }

 private:
  PlannedPrimitive primitive_;
  std::size_t scratchpad_bytes_ = 0;
};

/// A parameter in the layout that a oneDNN primitive uses.
class OnednnLayout final : public ParameterLayout {
 public:
  OnednnLayout(const dnnl::memory::desc& canonical, const dnnl::memory::desc& desc);
  std::size_t n_elements() const override;
  void pack(std::span<const float> canonical, float* parameter) const override;
  void unpack(const float* parameter, std::span<float> canonical) const override;
  std::string describe() const override;

  /// Of the fp32 parameter and of its gradient.
  const dnnl::memory::desc& desc() const { return desc_; }
  /// Of the same elements in the same places, in another type: the rounded weights.
  dnnl::memory::desc desc(dnnl::memory::data_type type) const;
  /// Whether some of the elements are padding, which is zero.
  bool padded() const;

 private:
  dnnl::memory::desc canonical_, desc_;
};

/// `given` as this backend's layout of a parameter of these sizes; null stays null.
std::shared_ptr<const OnednnLayout> as_onednn_layout(const std::shared_ptr<const ParameterLayout>& given,
                                                     const dnnl::memory::dims& dims);

/// The canonical layout of a parameter of these sizes, for ops that address its rows. Throws op_description if `given`
/// is another one; null: a new one.
std::shared_ptr<const OnednnLayout> canonical_layout(const std::shared_ptr<const ParameterLayout>& given,
                                                     const dnnl::memory::dims& dims);

/// The weights' layout for one primitive: the parameter's own if oneDNN's preferred implementation can run on it, else
/// the one which that prefers, and the caller reorders. `make(weights, allow_empty)` returns a descriptor.
template <typename Make>
auto choose_weights(const dnnl::memory::desc& parameter, const dnnl::memory::desc& any, const Make& make) {
  const auto best = make(any, false);
  const auto direct = make(parameter, true);
  const bool as_good = direct && std::string(direct.impl_info_str()) == best.impl_info_str();
  return as_good ? direct : best;
}

/// oneDNN's name of fp32 or bf16.
dnnl::memory::data_type onednn_type(DType dtype);

/// target += source, fp32 or bf16
void add_into(DType dtype, void* target, const void* source, std::size_t n_elements, const CpuContext& context);
inline void add_into(float* target, const float* source, std::size_t n_elements, const CpuContext& context) {
  add_into(DType::fp32, target, source, n_elements, context);
}

}  // namespace lockstep::cpu
