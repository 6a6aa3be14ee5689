// Products and reorders by oneDNN (product.h). Its matmul packs blocks of row-major operands itself while they are in
// the cache, and adds to what is there in the same pass.
#include <omp.h>

#include "kernels/cpu/base/onednn.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/simd.h"

namespace lockstep::cpu {
namespace {

using dnnl::memory;

memory::desc desc_of(const Matrix& m) {
  if (m.row_stride > 0) return {{m.rows, m.columns}, onednn_type(m.dtype), memory::dims{m.row_stride, 1}};
  const auto tag = m.is_transposed ? memory::format_tag::ba : memory::format_tag::ab;
  return {{m.rows, m.columns}, onednn_type(m.dtype), tag};
}

class OnednnProduct final : public Product {
 public:
  OnednnProduct(const ProductDescription& d, const CpuContext& context) : threads_(context.threads) {
    omp_set_num_threads(threads_);  // oneDNN plans for this number of threads
    dnnl::primitive_attr attributes = user_scratchpad();
    if (d.adds) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const memory::desc a = desc_of(d.a), b = desc_of(d.b), c = desc_of(d.c);
    const memory::desc bias =
        d.has_bias ? desc_of({.rows = 1, .columns = d.c.columns, .dtype = d.c.dtype}) : memory::desc();
    using Choice = dnnl::matmul::primitive_desc;
    const Choice chosen = plan_with_onednn(
        fmt::format("a product of ({}, {}) and ({}, {})", d.a.rows, d.a.columns, d.b.rows, d.b.columns), [&] {
          return d.has_bias ? Choice(onednn_engine(), a, b, bias, c, attributes)
                            : Choice(onednn_engine(), a, b, c, attributes);
        });
    algorithm_ = chosen.impl_info_str();
    workspace_bytes_ = chosen.scratchpad_desc().get_size();
    primitive_ = PlannedPrimitive(dnnl::matmul(chosen), {{DNNL_ARG_SRC, a},
                                                         {DNNL_ARG_WEIGHTS, b},
                                                         {DNNL_ARG_BIAS, bias},
                                                         {DNNL_ARG_DST, c},
                                                         {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string describe() const override { return algorithm_; }
  void execute(const Arguments& arguments) override {
    omp_set_num_threads(threads_);
    primitive_.execute({{DNNL_ARG_SRC, arguments.a},
                        {DNNL_ARG_WEIGHTS, arguments.b},
                        {DNNL_ARG_BIAS, arguments.bias},
                        {DNNL_ARG_DST, arguments.c},
                        {DNNL_ARG_SCRATCHPAD, arguments.workspace}});
  }

 private:
  int threads_;
  PlannedPrimitive primitive_;
  std::string algorithm_;
  std::size_t workspace_bytes_ = 0;
};

class OnednnReorder final : public Reorder {
 public:
  OnednnReorder(const memory::desc& from, const memory::desc& to, const CpuContext& context)
      : threads_(context.threads),
        reorder_((omp_set_num_threads(threads_),
                  plan_with_onednn("a reorder", [&] { return PlannedReorder(from, to, context); }))) {}

  std::size_t workspace_bytes() const override { return reorder_.scratchpad_bytes(); }
  void execute(const void* from, void* to, void* workspace) override {
    omp_set_num_threads(threads_);
    reorder_.execute(from, to, workspace);
  }

 private:
  int threads_;
  PlannedReorder reorder_;
};

}  // namespace

std::unique_ptr<Product> make_product(const ProductDescription& description, const CpuContext& context) {
  return std::make_unique<OnednnProduct>(description, context);
}

DType product_type(DType dtype) {
  return dtype == DType::bf16 && !onednn_has(dnnl::cpu_isa::avx512_core_bf16) ? DType::fp32 : dtype;
}

std::unique_ptr<Reorder> make_reorder(const BlockedLayout& from, DType from_type, const BlockedLayout& to,
                                      DType to_type, const CpuContext& context) {
  const memory::desc source = onednn_desc(from, onednn_type(from_type)), target = onednn_desc(to, onednn_type(to_type));
  if (source == target) return nullptr;
  return std::make_unique<OnednnReorder>(source, target, context);
}

std::string product_library() { return "oneDNN " + onednn_version(); }

std::string product_instructions() {
  if (onednn_has(dnnl::cpu_isa::avx512_core_amx)) return "AVX-512 with AMX";
  if (onednn_has(dnnl::cpu_isa::avx512_core_bf16)) return "AVX-512 with bf16";
  if (onednn_has(dnnl::cpu_isa::avx512_core)) return "AVX-512";
  if (onednn_has(dnnl::cpu_isa::avx2)) return "AVX2";
  return name(isa());
}

}  // namespace lockstep::cpu
