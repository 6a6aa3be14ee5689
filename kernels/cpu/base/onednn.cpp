#include "kernels/cpu/base/onednn.h"

#include <cpuid.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/parallel.h"

namespace lockstep::cpu {
namespace {

using dnnl::memory;

std::string dims_text(const memory::dims& dims) {
  std::string text = "(";
  for (std::size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + ")";
}

std::int64_t count(const memory::dims& dims) {
  std::int64_t n = 1;
  for (const auto d : dims) n *= d;
  return n;
}

/// Runs outside of steps, to pack and unpack parameters.
void reorder_now(const memory::desc& from, const void* source, const memory::desc& to, void* target) {
  plan_with_onednn("a reorder of " + dims_text(from.get_dims()), [&] {
    memory source_memory(from, onednn_engine(), const_cast<void*>(source));
    memory target_memory(to, onednn_engine(), target);
    dnnl::reorder(source_memory, target_memory).execute(onednn_stream(), source_memory, target_memory);
    dnnl::stream(onednn_stream()).wait();
  });
}

/// Some virtual machines have AMX, but not the CPUID leaf that describes its tiles. oneDNN 3.2 then uses them in one of
/// its kernels (the data gradient with a stride) without configuring them, which ends the process. Must be called
/// before any other call of oneDNN, because the first one fixes the instructions that it uses.
void limit_onednn() {
  static const bool done = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has_tiles = __get_cpuid_count(0x1d, 0, &a, &b, &c, &d) != 0 && a >= 1;
    if (!has_tiles) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_fp16);
    return true;
  }();
  static_cast<void>(done);
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

std::string onednn_instructions() {
  if (onednn_has(dnnl::cpu_isa::avx512_core)) return "AVX-512";
  if (onednn_has(dnnl::cpu_isa::avx2)) return "AVX2";
  return "SSE4.1";
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

PlannedReorder::PlannedReorder(const memory::desc& from, const memory::desc& to) {
  if (from == to) return;
  const dnnl::reorder::primitive_desc chosen(onednn_engine(), from, onednn_engine(), to, user_scratchpad());
  scratchpad_bytes_ = chosen.scratchpad_desc().get_size();
  primitive_ =
      PlannedPrimitive(dnnl::reorder(chosen),
                       {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
}

void PlannedReorder::execute(const void* from, void* to, void* scratchpad) {
  primitive_.execute({{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, scratchpad}});
}

OnednnLayout::OnednnLayout(const memory::desc& canonical, const memory::desc& desc)
    : canonical_(canonical), desc_(desc) {}

std::size_t OnednnLayout::n_elements() const { return desc_.get_size() / sizeof(float); }

bool OnednnLayout::padded() const { return n_elements() != static_cast<std::size_t>(count(desc_.get_dims())); }

// oneDNN does not give a descriptor another type. Blocked layouts are therefore looked up among those that have a name.
memory::desc OnednnLayout::desc(memory::data_type type) const {
  if (type == desc_.get_data_type()) return desc_;
  if (desc_.get_inner_nblks() == 0) return {desc_.get_dims(), type, desc_.get_strides()};
  for (int tag = 1; tag < static_cast<int>(memory::format_tag::format_tag_last); ++tag) {
    const auto named = static_cast<memory::format_tag>(tag);
    const memory::desc candidate(desc_.get_dims(), desc_.get_data_type(), named, /*allow_empty=*/true);
    if (candidate.get(true) != nullptr && candidate == desc_) return {desc_.get_dims(), type, named};
  }
  fail(ErrorCode::internal, "weights in the layout {} have no form of another type in oneDNN {}", describe(),
       onednn_version());
}

void OnednnLayout::pack(std::span<const float> canonical, float* parameter) const {
  require(static_cast<std::int64_t>(canonical.size()) == count(desc_.get_dims()), ErrorCode::internal,
          "a parameter of sizes {} cannot be packed from {} elements", dims_text(desc_.get_dims()), canonical.size());
  std::memset(parameter, 0, desc_.get_size());
  reorder_now(canonical_, canonical.data(), desc_, parameter);
}

void OnednnLayout::unpack(const float* parameter, std::span<float> canonical) const {
  require(static_cast<std::int64_t>(canonical.size()) == count(desc_.get_dims()), ErrorCode::internal,
          "a parameter of sizes {} cannot be unpacked into {} elements", dims_text(desc_.get_dims()), canonical.size());
  reorder_now(desc_, parameter, canonical_, canonical.data());
}

std::string OnednnLayout::describe() const {
  // In oneDNN's notation of formats: the dimensions from the outermost to the innermost, then the blocks.
  const memory::dims strides = desc_.get_strides();
  const memory::dims blocks = desc_.get_inner_blks();
  const memory::dims block_dims = desc_.get_inner_idxs();
  std::vector<int> order(strides.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return strides[static_cast<std::size_t>(a)] > strides[static_cast<std::size_t>(b)];
  });
  std::string text;
  for (const int d : order) {
    const bool blocked = std::find(block_dims.begin(), block_dims.end(), d) != block_dims.end();
    text += static_cast<char>((blocked ? 'A' : 'a') + d);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i)
    text += fmt::format("{}{}", blocks[i], static_cast<char>('a' + block_dims[i]));
  return text + (padded() ? " padded" : "");
}

std::shared_ptr<const OnednnLayout> as_onednn_layout(const std::shared_ptr<const ParameterLayout>& given,
                                                     const memory::dims& dims) {
  if (!given) return nullptr;
  auto layout = std::dynamic_pointer_cast<const OnednnLayout>(given);
  require(layout != nullptr, ErrorCode::op_description,
          "weight_layout was made by another backend ({}); pass the weight_layout() of an op of the cpu backend",
          given->describe());
  require(layout->desc().get_dims() == dims, ErrorCode::op_description,
          "weight_layout is for a parameter of sizes {}, but the op's weights have sizes {}",
          dims_text(layout->desc().get_dims()), dims_text(dims));
  return layout;
}

std::shared_ptr<const OnednnLayout> canonical_layout(const std::shared_ptr<const ParameterLayout>& given,
                                                     const memory::dims& dims) {
  memory::dims strides(dims.size(), 1);
  for (std::size_t i = dims.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * dims[i + 1];
  const memory::desc canonical(dims, memory::data_type::f32, strides);
  const std::shared_ptr<const OnednnLayout> layout = as_onednn_layout(given, dims);
  if (!layout) return std::make_shared<OnednnLayout>(canonical, canonical);
  require(layout->desc() == canonical, ErrorCode::op_description,
          "a weight of sizes {} that is read row by row has the layout {}; it must be canonical", dims_text(dims),
          layout->describe());
  return layout;
}

memory::data_type onednn_type(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

void add_into(DType dtype, void* target, const void* source, std::size_t n_elements, const CpuContext& context) {
  with_elements(dtype, [&](auto element) {
    using E = decltype(element);
    auto* const sum = static_cast<E*>(target);
    const auto* const added = static_cast<const E*>(source);
    const auto n = static_cast<std::int64_t>(n_elements);
    const int parts = part_count(context, n * static_cast<std::int64_t>(sizeof(E)));
    run_parts(parts, [&](int part) {
      const Range range = part_of(n, part, parts);
      for (std::int64_t i = range.begin; i < range.end; ++i)
        sum[i] = from_float<E>(to_float(sum[i]) + to_float(added[i]));
    });
  });
}

}  // namespace lockstep::cpu
