// y (M, out) = f(z), z = x (M, in) * weight^T (in, out) + bias (out), all row-major. y is overwritten; with gelu and
// silu z is kept for backward:
//   dz = f'(z) dy,  dx = dz * weight,  dweight = dz^T * x,  dbias = sum over rows of dz; each overwritten, added to, or
//   skipped
// x, y, z, their gradients, weight and bias are fp32 or bf16; gradients of parameters are fp32 or bf16, and all sums
// are fp32. oneDNN's matmul packs blocks of row-major operands itself while they are in the cache, adds to a previous
// gradient in the same pass, and needs no copies. Its inner product with weights that are packed once per step is 4 %
// faster forward, but 2 to 8 % slower in the gradients, and the gradient of the packed weights must be unpacked
// (SmolLM-135M, 256 rows, one core with AVX-512). bf16 tensors are multiplied in bf16 or in fp32 ("inner" below),
// whichever was timed to be faster, and in fp32 where the processor has no instructions for bf16. In fp32 each call
// widens its inputs and rounds its result.
// fp8 is emulated: each call rounds its inputs to numbers of fp8, divided by their scale, in the type of the product.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/base/timing_buffer.h"
#include "kernels/cpu/base/widen.h"
#include "lockstep/algorithms.h"
#include "lockstep/event.h"
#include "lockstep/fp8.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {

/// E is the type of weight and bias, Y that of y.
template <typename E, typename Y>
struct RowsTask {
  std::int64_t rows = 0, in_features = 0, out_features = 0;
  const float* x = nullptr;
  const E* weight = nullptr;
  const E* bias = nullptr;  // null if there is no bias
  Y* y = nullptr;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/matmul_rows_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

// ---- A few rows -----------------------------------------------------------------------------------------------------

// y = x * weight^T + bias for a few rows of x, as in text generation. The time is that of reading the weight. Each
// element of y is one sum over the input features in ascending order, a vector's lanes at a time, whatever the number
// of rows and of threads, so a row has the same bits in any batch.
//
// For more rows, oneDNN's kernels are faster: they read the weights once for many rows, and compute in bf16.
constexpr std::int64_t kMostRows = 64;

template <typename E, typename Y>
void multiply(const MatmulDescription& d, const Matmul::Forward& args, const float* x, const CpuContext& context) {
  using Task = RowsTask<E, Y>;
  const Task task{.rows = d.rows,
                  .in_features = d.in_features,
                  .out_features = d.out_features,
                  .x = x,
                  .weight = static_cast<const E*>(args.weight),
                  .bias = static_cast<const E*>(args.bias),
                  .y = static_cast<Y*>(args.y)};
  run_ranges(part_count(context, d.in_features * d.out_features * static_cast<std::int64_t>(sizeof(E))), d.out_features,
             [&](Range range) {
               LOCKSTEP_DISPATCH(multiply_rows<Task>)
               (task, range);
             });
}

bool is_for_rows(const MatmulDescription& d) { return d.inference && !d.fp8 && d.rows <= kMostRows; }

std::size_t rows_workspace_bytes(const MatmulDescription& d) {
  return d.dtype == DType::fp32 ? 0 : static_cast<std::size_t>(d.rows * d.in_features) * sizeof(float);
}

/// Computes y without the activation. The weight is (out, in), row-major; the workspace holds x in fp32.
void multiply_rows(const MatmulDescription& d, const Matmul::Forward& args, void* workspace,
                   const CpuContext& context) {
  if (d.dtype == DType::fp32) {
    multiply<float, float>(d, args, static_cast<const float*>(args.x), context);
    return;
  }
  auto* const x = static_cast<float*>(workspace);
  widen(static_cast<const Bf16*>(args.x), x, d.rows * d.in_features, context);
  if (d.fp32_output)
    multiply<Bf16, float>(d, args, x, context);
  else
    multiply<Bf16, Bf16>(d, args, x, context);
}

// ---- The op ---------------------------------------------------------------------------------------------------------

std::string text(const MatmulDescription& d) {
  return fmt::format("matmul ({}, {}) -> {}{}{}", d.rows, d.in_features, d.out_features, d.bias ? " with bias" : "",
                     d.fp8                    ? ", fp8"
                     : d.dtype == DType::fp32 ? ""
                                              : fmt::format(", {}", name(d.dtype)));
}

/// target = the numbers of a tensor, rounded to fp8 and divided by its scale.
void emulate_fp8(const Fp8Format& format, const Bf16* source, std::int64_t n_elements, TypedPointer target,
                 const CpuContext& context) {
  const int parts = part_count(context, n_elements * static_cast<std::int64_t>(sizeof(Bf16)));
  std::vector<int> greatest(static_cast<std::size_t>(parts));
  run_parts(parts, [&](int part) {
    int of_part = 0;  // as the bits of its magnitude
    const Range range = part_of(n_elements, part, parts);
    for (std::int64_t i = range.begin; i < range.end; ++i) of_part = std::max(of_part, source[i].bits & 0x7fff);
    greatest[static_cast<std::size_t>(part)] = of_part;
  });
  const float scale = fp8_scale(static_cast<std::uint32_t>(*std::ranges::max_element(greatest)), format);
  with_elements(target.dtype, [&]<typename E>(E) {
    run_ranges(parts, n_elements, [&](Range range) {
      const float inverse = 1 / scale;
      for (std::int64_t i = range.begin; i < range.end; ++i)
        target.as<E>()[i] = from_float<E>(round_to_fp8(scale * to_float(source[i]), format) * inverse);
    });
  });
}

/// target = a * b (+ bias), or target += a * b.
struct Products {
  std::unique_ptr<Product> overwrite, accumulate;  // `accumulate` is null if it was not requested

  explicit operator bool() const { return overwrite != nullptr; }
  std::size_t workspace_bytes() const {
    const auto bytes = [](const std::unique_ptr<Product>& p) { return p ? p->workspace_bytes() : std::size_t{0}; };
    return std::max(bytes(overwrite), bytes(accumulate));
  }
};

class CpuMatmul final : public CpuOp<MatmulDescription> {
 public:
  /// `inner` is the type in which bf16 tensors are multiplied.
  CpuMatmul(const MatmulDescription& description, DType inner, const CpuContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override;
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override;

 private:
  /// A tensor that is stored in bf16 and multiplied in fp32 or fp8. Empty if it is multiplied as stored.
  struct Conversion {
    std::int64_t n_elements = 0;
    const Fp8Format* fp8 = nullptr;
    std::size_t at = 0;  // offset of the other form in the workspace
  };

  void plan();
  void place();
  Products products(Matrix a, Matrix b, Matrix c, bool has_bias, bool also_adds);
  bool is_widened() const { return inner_ != d_.dtype; }
  bool has_activation() const { return d_.activation != ActivationFunction::none; }
  bool keeps_z() const { return has_activation() && d_.activation != ActivationFunction::relu && !d_.inference; }
  ActivationPass activation_pass(const void* x, const void* dy, void* out) const {
    return {d_.activation, d_.dtype, d_.rows * d_.out_features, x, dy, out};
  }
  std::size_t y_bytes() const { return static_cast<std::size_t>(d_.rows * d_.out_features) * size_bytes(d_.dtype); }
  std::size_t x_bytes() const { return static_cast<std::size_t>(d_.rows * d_.in_features) * size_bytes(d_.dtype); }
  Conversion conversion(std::int64_t n_elements) const { return {.n_elements = is_widened() ? n_elements : 0}; }
  Conversion operand(std::int64_t n_elements, const Fp8Format& format) const {
    return d_.fp8 ? Conversion{.n_elements = n_elements, .fp8 = &format} : conversion(n_elements);
  }
  /// `data`, or its inner form in the workspace.
  const void* converted(const Conversion& conversion, const void* data, void* workspace) const;
  void weight_gradient(const Backward& args, const void* inner_dz, void* workspace);
  void data_gradient(const Backward& args, const void* inner_dz, void* workspace);

  DType inner_;  // the type in which tensors are multiplied
  std::shared_ptr<const BlockedLayout> layout_;
  Products forward_, data_, weight_;
  Conversion x_in_, weight_in_, bias_in_, dz_in_, y_out_, dx_out_;
  std::size_t scratchpad_bytes_ = 0;
  OpMemoryRequirements requirements_;
  struct Offsets {
    std::size_t scratchpad = 0, dz = 0, dx = 0, dweight = 0;
  } at_;
};

CpuMatmul::CpuMatmul(const MatmulDescription& description, DType inner, const CpuContext& context)
    : PlannedOp(description, context), inner_(inner) {
  require(d_.dtype == DType::fp32 || d_.dtype == DType::bf16, ErrorCode::not_supported,
          "{}: the cpu backend computes in fp32 or bf16, not in {}", text(d_), name(d_.dtype));
  layout_ = canonical_layout(d_.weight_layout, {d_.out_features, d_.in_features});
  if (is_for_rows(d_)) {
    requirements_.forward_workspace_bytes = rows_workspace_bytes(d_);
    return;
  }
  plan();
  place();
}

Products CpuMatmul::products(Matrix a, Matrix b, Matrix c, bool has_bias, bool also_adds) {
  Products made;
  made.overwrite = make_product({.a = a, .b = b, .c = c, .has_bias = has_bias}, context_);
  if (also_adds) made.accumulate = make_product({.a = a, .b = b, .c = c, .adds = true}, context_);
  scratchpad_bytes_ = std::max(scratchpad_bytes_, made.workspace_bytes());
  return made;
}

void CpuMatmul::plan() {
  const std::int64_t rows = d_.rows, in = d_.in_features, out = d_.out_features;
  const Matrix x{rows, in, inner_}, y{rows, out, d_.fp32_output ? DType::fp32 : inner_}, weight{out, in, inner_};
  forward_ = products(x, {in, out, inner_, /*is_transposed=*/true}, y, d_.bias, false);
  x_in_ = operand(rows * in, kE4m3);
  weight_in_ = operand(out * in, kE4m3);
  if (d_.bias) bias_in_ = conversion(out);
  if (!d_.fp32_output) y_out_ = conversion(rows * out);
  if (d_.inference) return;
  weight_ = products({out, rows, inner_, /*is_transposed=*/true}, x, {out, in}, false, true);
  dz_in_ = operand(rows * out, kE5m2);
  if (!d_.input_gradient) return;
  data_ = products(y, weight, x, false, true);
  dx_out_ = conversion(rows * in);
}

/// Forward and backward run at different times, so they use the same places in the workspace.
void CpuMatmul::place() {
  WorkspacePlan workspace;
  at_.scratchpad = workspace.take(scratchpad_bytes_);
  const auto take = [&](Conversion& c) {
    if (c.n_elements > 0) c.at = workspace.take(static_cast<std::size_t>(c.n_elements) * size_bytes(inner_));
  };
  for (Conversion* c : {&x_in_, &weight_in_, &bias_in_, &y_out_}) take(*c);
  // These have the same sizes, and y and x are no longer needed when dz and dx are written.
  dz_in_.at = y_out_.at;
  dx_out_.at = x_in_.at;
  requirements_.forward_workspace_bytes = workspace.size_bytes();
  if (keeps_z()) requirements_.saved_bytes = y_bytes();
  if (d_.inference) return;
  if (y_out_.n_elements == 0) take(dz_in_);
  if (has_activation()) at_.dz = workspace.take(y_bytes());
  if (is_widened() && d_.input_gradient) at_.dx = workspace.take(x_bytes());
  if (d_.gradient_dtype != DType::fp32)
    at_.dweight = workspace.take(static_cast<std::size_t>(d_.out_features * d_.in_features) * sizeof(float));
  requirements_.backward_workspace_bytes = workspace.size_bytes();
}

std::string CpuMatmul::describe() const {
  if (is_for_rows(d_)) return fmt::format("{}: own kernel for a few rows", text(d_));
  std::string out = fmt::format("{}: forward {}", text(d_), forward_.overwrite->describe());
  if (data_) out += fmt::format(", data gradient {}", data_.overwrite->describe());
  if (weight_) out += fmt::format(", weight gradient {}", weight_.overwrite->describe());
  if (d_.bias) out += "; bias fused";
  if (has_activation()) out += fmt::format("; {} in a pass", name(d_.activation));
  if (is_widened()) out += "; multiplied in fp32";
  return out;
}

const void* CpuMatmul::converted(const Conversion& conversion, const void* data, void* workspace) const {
  if (conversion.n_elements == 0 || data == nullptr) return data;
  const auto* const stored = static_cast<const Bf16*>(data);
  void* const inner = at(workspace, conversion.at);
  if (conversion.fp8)
    emulate_fp8(*conversion.fp8, stored, conversion.n_elements, {inner, inner_}, context_);
  else
    widen(stored, static_cast<float*>(inner), conversion.n_elements, context_);
  return inner;
}

void CpuMatmul::run_forward(const Forward& args, const OpMemory& memory, Stream&) {
  void* const workspace = memory.workspace;
  if (is_for_rows(d_)) {
    multiply_rows(d_, args, workspace, context_);
    if (has_activation()) run_activation(activation_pass(args.y, nullptr, args.y), context_);
    return;
  }
  void* const z = keeps_z() ? memory.saved : args.y;
  const bool is_narrowed = y_out_.n_elements > 0;
  void* const inner_z = is_narrowed ? at(workspace, y_out_.at) : z;
  forward_.overwrite->execute({.a = converted(x_in_, args.x, workspace),
                               .b = converted(weight_in_, args.weight, workspace),
                               .bias = converted(bias_in_, args.bias, workspace),
                               .c = inner_z,
                               .workspace = at(workspace, at_.scratchpad)});
  if (is_narrowed) narrow(static_cast<const float*>(inner_z), static_cast<Bf16*>(z), y_out_.n_elements, context_);
  if (has_activation()) run_activation(activation_pass(z, nullptr, args.y), context_);
}

/// dbias (+)= the sums of the columns of dz (rows, columns). The columns are divided among threads; rows are added in
/// order.
template <typename G>
void add_columns(DType dtype, const void* dz, std::int64_t rows, std::int64_t columns, G* dbias, GradientMode mode,
                 const CpuContext& context) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t blocks = (columns + kBlock - 1) / kBlock;
  with_elements(dtype, [&]<typename E>(E) {
    run_ranges(part_count(context, rows * columns * static_cast<std::int64_t>(sizeof(E))), blocks, [&](Range range) {
      for (std::int64_t block = range.begin; block < range.end; ++block) {
        const std::int64_t first = block * kBlock, n = std::min(kBlock, columns - first);
        std::array<float, kBlock> sums{};
        for (std::int64_t row = 0; row < rows; ++row) {
          const E* const values = static_cast<const E*>(dz) + row * columns + first;
          for (std::int64_t i = 0; i < n; ++i) sums[static_cast<std::size_t>(i)] += to_float(values[i]);
        }
        for (std::int64_t i = 0; i < n; ++i) {
          const float sum = sums[static_cast<std::size_t>(i)];
          G& target = dbias[first + i];
          target = from_float<G>(mode == GradientMode::accumulate ? to_float(target) + sum : sum);
        }
      }
    });
  });
}

void CpuMatmul::run_backward(const Backward& args, const OpMemory& memory, Stream&) {
  require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
  void* const workspace = memory.workspace;
  const void* dz = args.dy;
  if (has_activation()) {
    void* const made = at(workspace, at_.dz);
    run_activation(activation_pass(keeps_z() ? memory.saved : args.y, args.dy, made), context_);
    dz = made;
  }
  const bool wants_parameters = args.parameter_mode != GradientMode::skip;
  const bool wants_dx = d_.input_gradient && args.dx_mode != GradientMode::skip;
  if (!wants_parameters && !wants_dx) return;
  const void* const inner_dz = converted(dz_in_, dz, workspace);
  if (wants_parameters) {
    weight_gradient(args, inner_dz, workspace);
    if (d_.bias)
      with_elements(d_.gradient_dtype, [&]<typename G>(G) {
        add_columns(d_.dtype, dz, d_.rows, d_.out_features, static_cast<G*>(args.dbias), args.parameter_mode, context_);
      });
  }
  if (wants_dx) data_gradient(args, inner_dz, workspace);
}

void CpuMatmul::weight_gradient(const Backward& args, const void* inner_dz, void* workspace) {
  const bool accumulate = args.parameter_mode == GradientMode::accumulate, is_narrow = d_.gradient_dtype != DType::fp32;
  float* const in_fp32 = is_narrow ? at<float>(workspace, at_.dweight) : static_cast<float*>(args.dweight);
  Product& product = accumulate && !is_narrow ? *weight_.accumulate : *weight_.overwrite;
  product.execute({.a = inner_dz,
                   .b = converted(x_in_, args.x, workspace),
                   .c = in_fp32,
                   .workspace = at(workspace, at_.scratchpad)});
  if (is_narrow)
    narrow(in_fp32, static_cast<Bf16*>(args.dweight), d_.out_features * d_.in_features, context_, accumulate);
}

void CpuMatmul::data_gradient(const Backward& args, const void* inner_dz, void* workspace) {
  const bool accumulate = args.dx_mode == GradientMode::accumulate;
  void* const scratchpad = at(workspace, at_.scratchpad);
  void* const inner_dx = is_widened() ? at(workspace, dx_out_.at) : args.dx;
  // The target of an accumulation has the outer type, so a widened product cannot add to it.
  Product& product = accumulate && !is_widened() ? *data_.accumulate : *data_.overwrite;
  product.execute(
      {.a = inner_dz, .b = converted(weight_in_, args.weight, workspace), .c = inner_dx, .workspace = scratchpad});
  if (!is_widened()) return;
  void* const dx = accumulate ? at(workspace, at_.dx) : args.dx;
  narrow(static_cast<const float*>(inner_dx), static_cast<Bf16*>(dx), dx_out_.n_elements, context_);
  if (accumulate) add_into(d_.dtype, args.dx, dx, static_cast<std::size_t>(d_.rows * d_.in_features), context_);
}

constexpr DType kInnerTypes[] = {DType::bf16, DType::fp32};

/// Times forward and backward. More rows than kRowsPerThread per thread would make no difference.
Timing time_inner_types(MatmulDescription d, const CpuContext& context) {
  constexpr std::int64_t kRowsPerThread = 1024;
  d.rows = std::min(d.rows, kRowsPerThread * std::max(1, context.threads));
  const auto bytes = [&](std::int64_t n_elements) {
    return static_cast<std::size_t>(n_elements) * size_bytes(d.dtype);
  };
  std::vector<std::unique_ptr<CpuMatmul>> candidates;
  std::size_t workspace_bytes = 0, saved_bytes = 0;
  for (const DType inner : kInnerTypes) {
    candidates.push_back(std::make_unique<CpuMatmul>(d, inner, context));
    const OpMemoryRequirements requirements = candidates.back()->memory_requirements();
    workspace_bytes =
        std::max({workspace_bytes, requirements.forward_workspace_bytes, requirements.backward_workspace_bytes});
    saved_bytes = std::max(saved_bytes, requirements.saved_bytes);
  }
  const TimingBuffer x(bytes(d.rows * d.in_features)), dx(bytes(d.rows * d.in_features));
  const TimingBuffer y(static_cast<std::size_t>(d.rows * d.out_features) * sizeof(float));
  const TimingBuffer weight(bytes(d.in_features * d.out_features));
  const TimingBuffer bias(bytes(d.out_features)), dbias(static_cast<std::size_t>(d.out_features) * sizeof(float));
  const TimingBuffer dweight(static_cast<std::size_t>(d.in_features * d.out_features) * sizeof(float));
  const TimingBuffer workspace(workspace_bytes), saved(saved_bytes);
  const OpMemory memory{workspace.as(), saved.as()};
  class NoStream final : public Stream {
    void wait(const Event&) override {}
    void synchronize() override {}
  } stream;
  return time_in_alternation(candidates.size(), [&](std::size_t i) {
    return time_call([&] {
      candidates[i]->run_forward(
          {.x = x.as(), .weight = weight.as(), .bias = d.bias ? bias.as() : nullptr, .y = y.as()}, memory, stream);
      if (d.inference) return;
      Matmul::Backward backward;
      backward.x = x.as();
      backward.weight = weight.as();
      backward.y = y.as();
      backward.dy = y.as();
      backward.dx = dx.as();
      backward.dweight = dweight.as();
      backward.dbias = dbias.as();
      candidates[i]->run_backward(backward, memory, stream);
    });
  });
}

/// Without a table of algorithms, this is bf16 if the processor has instructions for it. The key does not contain the
/// number of rows, so that ranks whose batch is one sample smaller use the same type.
DType choose_inner_type(const MatmulDescription& d, const CpuContext& context) {
  if (is_for_rows(d)) return d.dtype;
  if (d.dtype != DType::bf16 || product_type(DType::bf16) != DType::bf16) return DType::fp32;
  if (!kHasOnednn || !context.algorithms) return DType::bf16;
  static const std::vector<std::string> names{"bf16", "widened"};
  const std::string key = fmt::format("matmul {} -> {}, bf16{}", d.in_features, d.out_features,
                                      d.inference        ? ", inference"
                                      : d.input_gradient ? ""
                                                         : ", no input gradient");
  return kInnerTypes[context.algorithms->choose(key, names, [&] { return time_inner_types(d, context); })];
}

}  // namespace

std::unique_ptr<Matmul> make_matmul(const MatmulDescription& description, const CpuContext& context) {
  return std::make_unique<CpuMatmul>(description, choose_inner_type(description, context), context);
}

}  // namespace lockstep::cpu
