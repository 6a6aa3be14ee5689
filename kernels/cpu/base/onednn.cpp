#include "kernels/cpu/base/onednn.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/cpu/base/machine.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace lockstep::cpu {
namespace {

using dnnl::memory;

#ifdef __x86_64__
bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

/// LOCKSTEP_MAX_ISA limits oneDNN too. Some virtual machines have AMX, but not the CPUID leaf that describes its tiles.
/// oneDNN 3.2 then uses them in one of its kernels (the data gradient with a stride) without configuring them, which
/// ends the process. Must be called before any other call of oneDNN, because the first one fixes the instructions that
/// it uses. A limit that is set here would replace that of oneDNN's own variable, so none is set if that variable is.
void limit_onednn() {
  static const bool done = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has_tiles = __get_cpuid_count(0x1d, 0, &a, &b, &c, &d) != 0 && a >= 1;
    switch (max_isa()) {
      case MaxIsa::avx2:
        dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
        break;
      case MaxIsa::avx512:
        dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_vnni);
        break;
      case MaxIsa::avx512_bf16:
        dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
        break;
      case MaxIsa::all:
        if (!has_tiles && !is_set("ONEDNN_MAX_CPU_ISA") && !is_set("DNNL_MAX_CPU_ISA"))
          dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_fp16);
        break;
    }
    return true;
  }();
  static_cast<void>(done);
}
#else
void limit_onednn() {}
#endif

DType dtype_of(const memory::desc& desc) {
  return desc.get_data_type() == memory::data_type::bf16 ? DType::bf16 : DType::fp32;
}

}  // namespace

const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine = (limit_onednn(), dnnl::engine(dnnl::engine::kind::cpu, 0));
  return engine;
}

const dnnl::stream& onednn_stream() {
  static const dnnl::stream stream(onednn_engine());
  return stream;
}

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

bool onednn_has(dnnl::cpu_isa wanted) {
  limit_onednn();
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

PlannedPrimitive::PlannedPrimitive(const dnnl::primitive& primitive, std::initializer_list<Argument> arguments)
    : primitive_(primitive) {
  memories_.reserve(arguments.size());
  for (const Argument& argument : arguments) {
    if (argument.desc.get_size() == 0) continue;
    memories_.push_back(memory(argument.desc, onednn_engine(), DNNL_MEMORY_NONE));
    arguments_.push_back({argument.index, memories_.back().get()});
  }
}

void PlannedPrimitive::execute(std::initializer_list<Pointer> pointers) {
  dnnl_status_t status = dnnl_success;
  for (const dnnl_exec_arg_t& argument : arguments_) {
    const auto* pointer =
        std::find_if(pointers.begin(), pointers.end(), [&](const Pointer& p) { return p.index == argument.arg; });
    require(pointer != pointers.end() && pointer->data != nullptr, ErrorCode::internal,
            "a oneDNN primitive was executed without its argument {}", argument.arg);
    status = dnnl_memory_set_data_handle(argument.memory, const_cast<void*>(pointer->data));
    if (status != dnnl_success) break;
  }
  if (status == dnnl_success)
    status = dnnl_primitive_execute(primitive_.get(), onednn_stream().get(), static_cast<int>(arguments_.size()),
                                    arguments_.data());
  require(status == dnnl_success, ErrorCode::library, "oneDNN {} failed to execute a primitive (status {})",
          onednn_version(), static_cast<int>(status));
}

PlannedReorder::PlannedReorder(const memory::desc& from, const memory::desc& to, const CpuContext& context) {
  if (from == to) return;
  const dnnl::reorder::primitive_desc chosen(onednn_engine(), from, onednn_engine(), to, user_scratchpad());
  // This implementation computes the position of each element separately, which is slow. On AVX2, it is the only one
  // for bf16.
  if (chosen.impl_info_str() == std::string("simple:any")) {
    own_ = make_own_reorder(layout_of(from), dtype_of(from), layout_of(to), dtype_of(to), context);
    return;
  }
  scratchpad_bytes_ = chosen.scratchpad_desc().get_size();
  primitive_ =
      PlannedPrimitive(dnnl::reorder(chosen),
                       {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
}

void PlannedReorder::execute(const void* from, void* to, void* scratchpad) {
  if (own_)
    own_->execute(from, to, nullptr);
  else
    primitive_.execute({{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, scratchpad}});
}

// oneDNN cannot create a blocked descriptor from its blocks. It is therefore looked up among the named layouts.
memory::desc onednn_desc(const BlockedLayout& layout, memory::data_type type) {
  if (layout.blocks().empty()) return {layout.sizes(), type, layout.strides()};
  for (int tag = 1; tag < static_cast<int>(memory::format_tag::format_tag_last); ++tag) {
    const memory::desc candidate(layout.sizes(), type, static_cast<memory::format_tag>(tag), /*allow_empty=*/true);
    if (candidate.get(true) != nullptr && layout_of(candidate) == layout) return candidate;
  }
  fail(ErrorCode::internal, "oneDNN {} has no name for weights in the layout {}", onednn_version(), layout.describe());
}

BlockedLayout layout_of(const memory::desc& desc) {
  std::vector<BlockedLayout::Block> blocks;
  const memory::dims sizes = desc.get_inner_blks(), dimensions = desc.get_inner_idxs();
  for (std::size_t i = 0; i < sizes.size(); ++i)
    blocks.push_back({.size = sizes[i], .dimension = static_cast<int>(dimensions[i])});
  return {desc.get_dims(), desc.get_strides(), std::move(blocks)};
}

memory::data_type onednn_type(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

}  // namespace lockstep::cpu
