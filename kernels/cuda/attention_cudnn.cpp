// The graphs of attention_bare.h as cuDNN plans: those of cuDNN's heuristics are timed, or the first one is used. The
// scale of the scores is a value inside of the graph, and cudnn-frontend itself clears the accumulators in the
// workspace.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>

#include "kernels/cuda/attention_bare.h"
#include "kernels/cuda/base/cudnn.h"
#include "kernels/cuda/base/cudnn_frontend.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/base/timing.h"
#include "lockstep/algorithms.h"
#include "lockstep/error.h"
#include "lockstep/launches.h"
#include "lockstep/log.h"

namespace lockstep::cuda {
namespace {

using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

/// The tensors of all graphs. The values are their numbers in a graph; pointers are passed in this order.
enum class Role : std::int64_t {
  q = 1,
  k,
  v,
  y,
  log_sum_exp,
  dy,
  dq,
  dk,
  dv,
  length,
  qkv_offset,
  y_offset,
  log_sum_exp_offset,
  mask,
};

void* pointer_of(Role role, const AttentionTensors& t) {
  const AttentionDocuments& d = t.documents;
  const void* const pointers[] = {t.q,  t.k,      t.v,          t.y,        t.log_sum_exp,        t.dy,  t.dq, t.dk,
                                  t.dv, d.length, d.qkv_offset, d.y_offset, d.log_sum_exp_offset, t.mask};
  return const_cast<void*>(pointers[static_cast<std::size_t>(role) - 1]);
}

/// Builds a graph, and records which tensors it has.
class Writer {
 public:
  Writer(Graph& graph, const AttentionShape& shape) : graph_(graph), s_(shape), is_ragged_(shape.is_ragged()) {}

  void write(AttentionGraph kind) {
    if (is_ragged_) {
      length_ = integers(Role::length, s_.documents());
      qkv_offset_ = integers(Role::qkv_offset, s_.documents() + 1);
      y_offset_ = integers(Role::y_offset, s_.documents() + 1);
      if (kind != AttentionGraph::inference)
        log_sum_exp_offset_ = integers(Role::log_sum_exp_offset, s_.documents() + 1);
    }
    if (s_.kept_apart == Documents::mask) {
      const std::int64_t n = s_.whole.sequence;
      mask_ = graph_.tensor(Tensor_attributes()
                                .set_uid(note(Role::mask))
                                .set_data_type(type_of(s_.whole.dtype))
                                .set_dim({s_.samples, 1, n, n})
                                .set_stride({n * n, n * n, n, 1})
                                .set_name("mask"));
    }
    const Tensor q = activation(Role::q, s_.heads(), packed(), qkv_offset_);
    const Tensor k = activation(Role::k, s_.kv_heads, packed(), qkv_offset_);
    const Tensor v = activation(Role::v, s_.kv_heads, packed(), qkv_offset_);
    if (kind == AttentionGraph::inference || kind == AttentionGraph::forward)
      write_forward(q, k, v, kind == AttentionGraph::inference);
    else
      write_backward(q, k, v, kind == AttentionGraph::deterministic_backward);
    std::sort(roles_.begin(), roles_.end());
  }
  std::vector<Role> roles() const { return roles_; }

 private:
  void write_forward(const Tensor& q, const Tensor& k, const Tensor& v, bool is_inference) {
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(!is_inference);
    choose_scores(options);
    const auto [y, log_sum_exp] = graph_.sdpa(q, k, v, options);
    output(y, Role::y, s_.heads(), width(), y_offset_);
    if (is_inference) return;
    log_sum_exp->set_output(true).set_uid(note(Role::log_sum_exp)).set_data_type(fe::DataType_t::FLOAT);
    place_log_sum_exp(log_sum_exp);
  }

  void write_backward(const Tensor& q, const Tensor& k, const Tensor& v, bool is_deterministic) {
    const Tensor y = activation(Role::y, s_.heads(), width(), y_offset_);
    const Tensor dy = activation(Role::dy, s_.heads(), width(), y_offset_);
    const Tensor log_sum_exp = graph_.tensor(
        Tensor_attributes().set_uid(note(Role::log_sum_exp)).set_data_type(fe::DataType_t::FLOAT).set_name("lse"));
    place_log_sum_exp(log_sum_exp);
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention backward")
                       .set_deterministic_algorithm(is_deterministic);
    choose_scores(options);
    if (is_ragged_) options.set_max_total_seq_len_q(s_.tokens()).set_max_total_seq_len_kv(s_.tokens());
    const auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, y, dy, log_sum_exp, options);
    output(dq, Role::dq, s_.heads(), packed(), qkv_offset_);
    output(dk, Role::dk, s_.kv_heads, packed(), qkv_offset_);
    output(dv, Role::dv, s_.kv_heads, packed(), qkv_offset_);
  }

  /// Which scores count, and their scale: the same forward and backward.
  template <typename Options>
  void choose_scores(Options& options) const {
    options.set_causal_mask(true).set_attn_scale(s_.whole.score_scale());
    if (mask_)
      options.set_bias(mask_);  // it also has the window
    else if (s_.whole.window > 0)
      options.set_diagonal_band_left_bound(static_cast<int>(s_.whole.window));
    if (is_ragged_) options.set_padding_mask(true).set_seq_len_q(length_).set_seq_len_kv(length_);
  }

  /// Elements per token in the packed matrix, and in y.
  std::int64_t packed() const { return s_.whole.packed_width(); }
  std::int64_t width() const { return s_.whole.heads * s_.whole.head_dim; }
  std::int64_t sequences() const { return is_ragged_ ? s_.documents() : s_.samples; }

  std::int64_t note(Role role) {
    roles_.push_back(role);
    return static_cast<std::int64_t>(role);
  }
  void place(const Tensor& tensor, std::int64_t heads, std::int64_t token, const Tensor& offset) const {
    tensor->set_dim({sequences(), heads, s_.whole.sequence, s_.whole.head_dim})
        .set_stride({s_.whole.sequence * token, s_.whole.head_dim, token, 1});
    if (is_ragged_) tensor->set_ragged_offset(offset);
  }
  void place_log_sum_exp(const Tensor& tensor) const {
    const std::int64_t tokens = s_.whole.sequence, heads = s_.whole.heads;
    tensor->set_dim({sequences(), s_.heads(), tokens, 1}).set_alignment(sizeof(float));  // a part can begin at any row
    if (is_ragged_)
      tensor->set_stride({tokens * heads, 1, heads, 1}).set_ragged_offset(log_sum_exp_offset_);
    else
      tensor->set_stride({tokens * s_.heads(), tokens, 1, 1});
  }
  Tensor activation(Role role, std::int64_t heads, std::int64_t token, const Tensor& offset) {
    const Tensor tensor = graph_.tensor(Tensor_attributes()
                                            .set_uid(note(role))
                                            .set_data_type(type_of(s_.whole.dtype))
                                            .set_name(std::to_string(static_cast<int>(role))));
    place(tensor, heads, token, offset);
    return tensor;
  }
  void output(const Tensor& tensor, Role role, std::int64_t heads, std::int64_t token, const Tensor& offset) {
    tensor->set_output(true).set_uid(note(role)).set_data_type(type_of(s_.whole.dtype));
    place(tensor, heads, token, offset);
  }
  Tensor integers(Role role, std::int64_t n) {
    return graph_.tensor(Tensor_attributes()
                             .set_uid(note(role))
                             .set_data_type(fe::DataType_t::INT32)
                             .set_dim({n, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_name(std::to_string(static_cast<int>(role))));
  }

  Graph& graph_;
  const AttentionShape& s_;
  bool is_ragged_;
  std::vector<Role> roles_;
  Tensor length_, qkv_offset_, y_offset_, log_sum_exp_offset_, mask_;  // null: the graph has none
};

struct AttentionPlans : PlanList {
  std::vector<Role> roles;
  std::size_t untimed = 0;  // the plan that is used without timing
};

class CudnnAttention final : public PlannedAttention {
 public:
  CudnnAttention(std::shared_ptr<AttentionPlans> list, std::size_t plan)
      : list_(std::move(list)), index_(plan), workspace_bytes_(list_->workspace_bytes(plan)) {}

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string plan() const override { return list_->names[index_]; }

  void run(const AttentionTensors& tensors, void* workspace, Stream& stream) override {
    std::array<void*, static_cast<std::size_t>(Role::mask)> pointers;
    for (std::size_t i = 0; i < list_->roles.size(); ++i) pointers[i] = pointer_of(list_->roles[i], tensors);
    set_stream(list_->handle, native(stream));
    LOCKSTEP_CUDA_CHECK(list_->graph.execute_plan_at_index(
        list_->handle, pointers.data(), static_cast<int>(list_->roles.size()), workspace, list_->numbers[index_]));
  }

 private:
  std::shared_ptr<AttentionPlans> list_;
  std::size_t index_, workspace_bytes_;
};

/// Asks cuDNN for plans. Warns and returns null if there is none.
std::shared_ptr<AttentionPlans> ask(AttentionGraph kind, const AttentionShape& shape, const CudaContext& context) {
  auto list = std::make_shared<AttentionPlans>();
  PlanList::Graph& graph = list->graph;
  graph.set_io_data_type(type_of(shape.whole.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (context.described) graph.set_device_properties(properties_of(*context.described));
  Writer writer(graph, shape);
  writer.write(kind);
  list->roles = writer.roles();
  list->handle = context.described ? nullptr : cudnn_handle(context.device);
  if (list->handle) set_stream(list->handle, nullptr);  // the stream of the last run may be destroyed by now
  const auto refuses = [&](fe::error_t status) {
    if (status.is_bad())
      log::warning("{}, {}: cuDNN {} has no plan, so kernels without tensor cores compute it. cuDNN's reason: {}",
                   name(kind), text(shape), cudnn_version(), status.get_message());
    return status.is_bad();
  };
  if (refuses(graph.validate()) || refuses(graph.build_operation_graph(list->handle)) ||
      refuses(graph.create_execution_plans({fe::HeurMode_t::A})) || refuses(graph.check_support()) ||
      refuses(graph.build_plans()))
    return nullptr;
  // Pointers are passed in the order of the numbers, so their number must match the tensors of the graph.
  const std::vector<std::int64_t> numbers = graph.get_variant_pack_uids_sorted();
  require(std::ranges::equal(numbers, list->roles, {}, {}, [](Role role) { return static_cast<std::int64_t>(role); }),
          ErrorCode::internal, "{}, {}: cudnn-frontend expects {} tensors, but the graph has {}", name(kind),
          text(shape), numbers.size(), list->roles.size());
  list->list();
  const auto first = std::ranges::find(list->numbers, graph.first());
  list->untimed = static_cast<std::size_t>(first - list->numbers.begin());
  list->built[list->untimed] = true;
  return list;
}

/// Memory for every tensor of a graph. Each sample is one document.
struct TimingTensors {
  TimingTensors(const AttentionShape& shape, const CudaContext& context)
      : qkv(bytes(shape, shape.whole.packed_width()), context),
        dqkv(bytes(shape, shape.whole.packed_width()), context),
        y(bytes(shape, shape.whole.heads * shape.whole.head_dim), context),
        dy(bytes(shape, shape.whole.heads * shape.whole.head_dim), context),
        log_sum_exp(static_cast<std::size_t>(shape.tokens() * shape.whole.heads) * sizeof(float), context),
        mask(shape.mask_bytes(), context),
        lists(kLists * list_length(shape) * sizeof(std::int32_t), context) {
    const AttentionDescription& d = shape.whole;
    const auto in = [&](const TimingMemory& packed, std::int64_t head) {
      return packed.as<std::byte>() + static_cast<std::size_t>(head * d.head_dim) * size_bytes(d.dtype);
    };
    tensors = {.q = in(qkv, 0),
               .k = in(qkv, d.heads),
               .v = in(qkv, d.heads + d.kv_heads),
               .y = y.as(),
               .log_sum_exp = log_sum_exp.as<float>(),
               .dy = dy.as(),
               .dq = in(dqkv, 0),
               .dk = in(dqkv, d.heads),
               .dv = in(dqkv, d.heads + d.kv_heads),
               .mask = mask.as()};
    if (shape.is_ragged()) write_lists(shape);
  }
  AttentionTensors tensors;

 private:
  static constexpr std::size_t kLists = 4;
  static std::size_t bytes(const AttentionShape& shape, std::int64_t width) {
    return static_cast<std::size_t>(shape.tokens() * width) * size_bytes(shape.whole.dtype);
  }
  static std::size_t list_length(const AttentionShape& shape) {
    return static_cast<std::size_t>(shape.documents()) + 1;
  }
  void write_lists(const AttentionShape& shape) {
    const AttentionDescription& d = shape.whole;
    const std::size_t length = list_length(shape);
    std::vector<std::int32_t> numbers(length, 0);
    std::fill_n(numbers.begin(), shape.samples, static_cast<std::int32_t>(d.sequence));
    for (const std::int64_t row : {d.packed_width(), d.heads * d.head_dim, d.heads})
      for (std::int64_t i = 0; i <= shape.documents(); ++i)
        numbers.push_back(static_cast<std::int32_t>(std::min(i, shape.samples) * d.sequence * row));
    auto* const first = lists.as<std::int32_t>();
    LOCKSTEP_CUDA_CHECK(
        cudaMemcpy(first, numbers.data(), numbers.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice));
    tensors.documents = {.length = first,
                         .qkv_offset = first + length,
                         .y_offset = first + 2 * length,
                         .log_sum_exp_offset = first + 3 * length};
  }

  TimingMemory qkv, dqkv, y, dy, log_sum_exp, mask, lists;
};

std::size_t choose_by_time(const std::shared_ptr<AttentionPlans>& list, AttentionGraph graph,
                           const AttentionShape& shape, const CudaContext& context) {
  std::optional<TimingTensors> memory;
  double best = std::numeric_limits<double>::infinity();
  return context.algorithms->choose(
      fmt::format("{}, cuDNN {}, {}, {}, {} of {} heads", context.device_name, cudnn_version(), name(graph),
                  text(shape), shape.kv_heads, shape.whole.kv_heads),
      list->names, [&](std::size_t i) {
        if (!list->build(i) || list->workspace_bytes(i) > attention_workspace_limit(context))
          return std::numeric_limits<double>::infinity();
        if (!memory) memory.emplace(shape, context);
        CudnnAttention attention(list, i);
        const TimingMemory workspace(attention.workspace_bytes(), context);
        const double seconds =
            seconds_of([&](Stream& stream) { attention.run(memory->tensors, workspace.as(), stream); }, context, best);
        best = std::min(best, seconds);
        return seconds;
      });
}

/// Causal: half of the products of a sample are computed, without the window or documents. Backward computes five
/// products of the size of the two of forward, and reads and writes each tensor and its gradient.
Launch work_of(AttentionGraph graph, const AttentionShape& shape) {
  const auto numbers = [](auto... factors) { return (1.0 * ... * static_cast<double>(factors)); };
  const AttentionDescription& d = shape.whole;
  const bool is_backward = graph == AttentionGraph::backward || graph == AttentionGraph::deterministic_backward;
  const double product = numbers(shape.tokens(), d.sequence, shape.heads(), d.head_dim);  // 2 FLOPs, of a half each
  const double width = numbers(2 * shape.heads() + 2 * shape.kv_heads, d.head_dim, size_bytes(d.dtype));
  return {.kind = is_backward ? "attention, backward" : "attention, forward",
          .bytes = numbers(shape.tokens()) * width * (is_backward ? 2 : 1) + numbers(shape.mask_bytes()),
          .flops = product * (is_backward ? 5 : 2)};
}

/// A plan for a device of which only the properties are known, so that cuDNN cannot be asked.
class OfflineAttention final : public PlannedAttention {
 public:
  OfflineAttention(AttentionGraph graph, const AttentionShape& shape, int compute_capability)
      : work_(work_of(graph, shape)), workspace_bytes_(expected_workspace_bytes(graph, shape, compute_capability)) {}
  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string plan() const override { return "a plan that the device chooses"; }
  void run(const AttentionTensors&, void*, Stream&) override { LaunchList::current()->add(work_); }

 private:
  Launch work_;
  std::size_t workspace_bytes_;
};

}  // namespace

std::size_t attention_workspace_limit(const CudaContext& context) {
  constexpr std::size_t kMost = std::size_t{2} << 30, kPart = 16;  // of the device's memory
  return std::min(kMost, context.memory_bytes / kPart);
}

std::unique_ptr<PlannedAttention> plan_attention(AttentionGraph graph, const AttentionShape& shape,
                                                 const CudaContext& context) {
  if (!may_have_plan(shape, context.compute_capability)) return nullptr;
  if (context.is_offline()) return std::make_unique<OfflineAttention>(graph, shape, context.compute_capability);
  // Layers of the same shape share their plans. They are never destroyed, since cuDNN may already be unloaded when the
  // process exits.
  static auto& known = *new std::map<std::string, std::shared_ptr<AttentionPlans>>;
  const std::string key = fmt::format("{}, {}, {}, {} of {} heads, scale {}", context.device, name(graph), text(shape),
                                      shape.kv_heads, shape.whole.kv_heads, shape.whole.score_scale()) +
                          (context.described ? context.described->json : "");
  const auto found = known.find(key);
  if (found == known.end()) cudnn_library();
  const auto list = found != known.end() ? found->second : known[key] = ask(graph, shape, context);
  if (!list) return nullptr;
  std::size_t chosen = list->untimed;
  if (context.algorithms && !context.described) chosen = choose_by_time(list, graph, shape, context);
  return std::make_unique<CudnnAttention>(list, list->build(chosen) ? chosen : list->untimed);
}

}  // namespace lockstep::cuda
