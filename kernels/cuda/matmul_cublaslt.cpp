// Products planned by cuBLASLt. It is column-major: there d^T (columns, rows) = b^T a^T.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "kernels/cuda/base/cublaslt.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/base/timing.h"
#include "kernels/cuda/matmul_bare.h"
#include "lockstep/error.h"
#include "lockstep/handle.h"
#include "lockstep/launches.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // NVIDIA's recommendation for Hopper
constexpr std::uint32_t kAlignment = 16;                        // the alignment of all pointers in bytes
constexpr int kMaxAlgorithms = 16;

struct ProductTraits {
  using Type = cublasLtMatmulDesc_t;
  static Type null() { return nullptr; }
  static void close(Type product) { LOCKSTEP_CUDA_REPORT(cublaslt().destroy_product(product)); }
};
struct LayoutTraits {
  using Type = cublasLtMatrixLayout_t;
  static Type null() { return nullptr; }
  static void close(Type layout) { LOCKSTEP_CUDA_REPORT(cublaslt().destroy_layout(layout)); }
};
struct PreferenceTraits {
  using Type = cublasLtMatmulPreference_t;
  static Type null() { return nullptr; }
  static void close(Type preference) { LOCKSTEP_CUDA_REPORT(cublaslt().destroy_preference(preference)); }
};

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

/// A column-major layout. `stride` is the number of elements from one column to the next; 0: `rows`.
Handle<LayoutTraits> make_layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride = 0) {
  cublasLtMatrixLayout_t layout = nullptr;
  LOCKSTEP_CUDA_CHECK(cublaslt().create_layout(&layout, type_of(dtype), static_cast<std::uint64_t>(rows),
                                               static_cast<std::uint64_t>(columns), stride > 0 ? stride : rows));
  return Handle<LayoutTraits>(layout);
}

class CublasLtProduct final : public PlannedProduct {
 public:
  CublasLtProduct(const ProductDescription& description, const CudaContext& context);

  std::size_t workspace_bytes() const override { return kWorkspaceBytes; }
  bool activates() const override { return epilogue_activates_; }
  std::string algorithm() const override {
    return candidates_.empty() ? "chosen on the device" : names_[chosen_] + fmt::format(" of {}", names_.size());
  }
  void run(const Arguments& args, void* workspace, Stream& stream) override;
  Launch work(bool accumulate) const;

  void choose();

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    LOCKSTEP_CUDA_CHECK(cublaslt().set_product(product_.get(), attribute, &value, sizeof value));
  }
  cublasLtEpilogue_t epilogue() const;
  /// Asks for the algorithms for the current product. There may be none.
  void ask();
  std::string name_of(const cublasLtMatmulAlgo_t& algorithm) const;

  ProductDescription d_;
  CudaContext context_;
  cublasLtHandle_t handle_ = nullptr;
  Handle<ProductTraits> product_;
  Handle<LayoutTraits> a_, b_, result_;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates_;
  std::vector<std::string> names_;
  std::size_t chosen_ = 0;
  bool epilogue_activates_ = false;
};

Launch CublasLtProduct::work(bool accumulate) const {
  const auto of = [](std::int64_t n, std::int64_t m, DType dtype) {
    return static_cast<double>(n * m) * static_cast<double>(size_bytes(dtype));
  };
  const double result = of(d_.rows, d_.columns, d_.d_dtype);
  return {.kind = d_.dtype == DType::e4m3 ? "matmul, fp8" : "matmul",
          .bytes = of(d_.rows, d_.inner, d_.dtype) + of(d_.inner, d_.columns, d_.dtype) +
                   result * (1 + (accumulate ? 1 : 0) + (d_.keeps_z ? 1 : 0)),
          .flops = 2 * of(d_.rows, d_.columns, d_.dtype) / static_cast<double>(size_bytes(d_.dtype)) *
                   static_cast<double>(d_.inner)};
}

CublasLtProduct::CublasLtProduct(const ProductDescription& description, const CudaContext& context)
    : d_(description), context_(context) {
  if (context.described) return;
  handle_ = cublaslt_handle(context.device);
  cublasLtMatmulDesc_t product = nullptr;
  LOCKSTEP_CUDA_CHECK(
      cublaslt().create_product(&product, d_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  product_ = Handle<ProductTraits>(product);
  // The operands are swapped: cuBLASLt's first operand is b.
  set(CUBLASLT_MATMUL_DESC_TRANSA, d_.b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, d_.a_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  b_ = d_.b_is_transposed ? make_layout(d_.dtype, d_.inner, d_.columns) : make_layout(d_.dtype, d_.columns, d_.inner);
  const DType of_a = d_.a_is_e5m2 ? DType::e5m2 : d_.dtype;
  a_ = d_.a_is_transposed ? make_layout(of_a, d_.rows, d_.inner) : make_layout(of_a, d_.inner, d_.rows);
  result_ = make_layout(d_.d_dtype, d_.columns, d_.rows, d_.d_stride);
  // gelu keeps z, whose rows must be aligned to 16 bytes.
  const bool has_epilogue = d_.activation == ActivationFunction::relu || d_.activation == ActivationFunction::gelu;
  epilogue_activates_ = has_epilogue && (!d_.keeps_z || d_.columns % 8 == 0);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue());
  if (epilogue_activates_ && d_.keeps_z) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, d_.columns);
  ask();
  if (candidates_.empty() && epilogue_activates_) {
    epilogue_activates_ = false;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue());
    ask();
  }
  require(!candidates_.empty(), ErrorCode::not_supported, "cuBLASLt {} has no algorithm for the product {}",
          cublaslt_version(), text(d_));
  for (const auto& candidate : candidates_) names_.push_back(name_of(candidate.algo));
}

cublasLtEpilogue_t CublasLtProduct::epilogue() const {
  const auto either = [&](cublasLtEpilogue_t plain, cublasLtEpilogue_t with_bias) {
    return d_.bias ? with_bias : plain;
  };
  if (!epilogue_activates_) return either(CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS);
  if (d_.activation == ActivationFunction::relu) return either(CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS);
  return d_.keeps_z ? either(CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
                    : either(CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS);
}

void CublasLtProduct::ask() {
  cublasLtMatmulPreference_t created = nullptr;
  LOCKSTEP_CUDA_CHECK(cublaslt().create_preference(&created));
  const Handle<PreferenceTraits> preference(created);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    LOCKSTEP_CUDA_CHECK(cublaslt().set_preference(preference.get(), attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, kAlignment);
  candidates_.resize(kMaxAlgorithms);
  int found = 0;
  const cublasStatus_t status =
      cublaslt().heuristics(handle_, product_.get(), b_.get(), a_.get(), result_.get(), result_.get(), preference.get(),
                            kMaxAlgorithms, candidates_.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED)
    found = 0;
  else
    LOCKSTEP_CUDA_CHECK(status);
  candidates_.resize(static_cast<std::size_t>(found));
  std::erase_if(candidates_, [](const auto& candidate) { return candidate.state != CUBLAS_STATUS_SUCCESS; });
}

std::string CublasLtProduct::name_of(const cublasLtMatmulAlgo_t& algorithm) const {
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    std::size_t written = 0;
    LOCKSTEP_CUDA_CHECK(cublaslt().get_algorithm(&algorithm, attribute, &value, sizeof value, &written));
    return static_cast<std::int64_t>(value);
  };
  return fmt::format("algorithm {} tile {} stages {} split {} scheme {} swizzle {} option {} inner {} cluster {}",
                     read(CUBLASLT_ALGO_CONFIG_ID, std::int32_t{}), read(CUBLASLT_ALGO_CONFIG_TILE_ID, std::uint32_t{}),
                     read(CUBLASLT_ALGO_CONFIG_STAGES_ID, std::uint32_t{}),
                     read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, std::int32_t{}),
                     read(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, std::uint32_t{}),
                     read(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, std::uint32_t{}),
                     read(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, std::uint32_t{}),
                     read(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, std::uint16_t{}),
                     read(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, std::uint16_t{}));
}

void CublasLtProduct::choose() {
  if (candidates_.empty()) return;
  std::vector<std::unique_ptr<TimingMemory>> memory;  // a, b, bias, d, z, workspace, scale
  double best = std::numeric_limits<double>::infinity();
  const auto bytes = [](std::int64_t rows, std::int64_t columns, DType dtype) {
    return static_cast<std::size_t>(rows * columns) * size_bytes(dtype);
  };
  chosen_ = context_.algorithms->choose(
      fmt::format("{}, cuBLASLt {}, {}", context_.device_name, cublaslt_version(), text(d_)), names_,
      [&](std::size_t i) {
        if (memory.empty())
          for (const std::size_t size :
               {bytes(d_.rows, d_.inner, d_.dtype), bytes(d_.inner, d_.columns, d_.dtype),
                bytes(1, d_.columns, d_.d_dtype), bytes(d_.rows, std::max(d_.columns, d_.d_stride), d_.d_dtype),
                d_.keeps_z ? bytes(d_.rows, d_.columns, d_.d_dtype) : 0, kWorkspaceBytes, sizeof(float)})
            memory.push_back(std::make_unique<TimingMemory>(size, context_));
        chosen_ = i;
        const auto* const scale = static_cast<const float*>(memory[6]->as());
        const Arguments args{.a = memory[0]->as(),
                             .b = memory[1]->as(),
                             .bias = memory[2]->as(),
                             .d = memory[3]->as(),
                             .z = memory[4]->as(),
                             .a_scale = scale,
                             .b_scale = scale};
        const double seconds = seconds_of([&](Stream& stream) { run(args, memory[5]->as(), stream); }, context_, best);
        best = std::min(best, seconds);
        return seconds;
      });
}

void CublasLtProduct::run(const Arguments& args, void* workspace, Stream& stream) {
  if (LaunchList* const list = LaunchList::current()) return list->add(work(args.accumulate));
  require(handle_ != nullptr, ErrorCode::internal, "the product {} was planned for a device that is not here",
          text(d_));
  if (d_.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  if (epilogue_activates_ && d_.keeps_z) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.z);
  if (d_.dtype == DType::e4m3) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.b_scale);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.a_scale);
  }
  const float one = 1, beta = args.accumulate ? 1.0f : 0.0f;
  LOCKSTEP_CUDA_CHECK(cublaslt().multiply(handle_, product_.get(), &one, args.b, b_.get(), args.a, a_.get(), &beta,
                                          args.d, result_.get(), args.d, result_.get(), &candidates_[chosen_].algo,
                                          workspace, kWorkspaceBytes, native(stream)));
}

}  // namespace

std::unique_ptr<PlannedProduct> plan_product(const ProductDescription& product, const CudaContext& context) {
  auto planned = std::make_unique<CublasLtProduct>(product, context);
  if (context.algorithms) planned->choose();
  return planned;
}

}  // namespace lockstep::cuda
