// Lists which graphs have cuDNN plans on an H200, on a machine without one: those of each convolution of ResNet-18 and
// ResNet-50, and those of the attention of three language models. Prints one line for each distinct convolution in the
// models' own graph, with the graphs that the cuda backend would use for it, and three lines for each attention. With
// --all, every graph of a convolution is built, otherwise the first of each kind; with --attention, only one attention
// over documents, on any GPU. Ends with status 1 if a graph for
// which cuDNN offers plans cannot be built, if an attention has no plan, or if a shape of the convolution tests cannot
// be computed.
//
//   plans DEVICE_DESCRIPTION.json [--all|--attention]      (test/cuda/plans_test.sh runs it, with a fake driver)
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "graph/graph.h"
#include "kernels/cuda/attention_bare.h"
#include "kernels/cuda/backend_ops.h"
#include "kernels/cuda/backend_planning.h"
#include "kernels/cuda/base/cudnn.h"
#include "kernels/cuda/conv2d_bare.h"
#include "kernels/cuda/conv2d_plan.h"
#include "layers/layers.h"
#include "lockstep/algorithms.h"
#include "lockstep/config.h"
#include "lockstep/error.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/ops/step_scalars.h"
#include "models/family.h"
#include "test/support/conv2d_cases.h"

namespace lockstep::cuda {
namespace {

/// Replaces a convolution in the graph of the models.
class NoConvolution final : public Conv2d {
 public:
  explicit NoConvolution(const Conv2dDescription& d) : layout_(d.weight_layout) {
    if (!layout_) layout_ = std::make_shared<KrscLayout>(d.out_channels, d.kernel_size, d.x[3]);
  }
  std::string describe() const override { return "none"; }
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  void run_forward(const Forward&, const OpMemory&, Stream&) override {}
  void run_backward(const Backward&, const OpMemory&, Stream&) override {}

 private:
  std::shared_ptr<const ParameterLayout> layout_;
};

/// Plans ops for the described device, and records the convolutions that are planned.
class Notes final : public PlanningBackend {
 public:
  using PlanningBackend::PlanningBackend;

  struct Convolution {
    Conv2dDescription description;
    int n_layers = 1;
  };
  std::vector<Convolution> convolutions;

  std::unique_ptr<Op> make_op(const OpRequest& request) override {
    if (request.type != typeid(Conv2dDescription)) return PlanningBackend::make_op(request);
    const auto& d = *static_cast<const Conv2dDescription*>(request.description);
    if (!d.weight_layout) return std::make_unique<NoConvolution>(d);  // only its layout is used
    const auto key = [](const Conv2dDescription& c) {
      return fmt::format("{} {} {} {} {} {}", c.x.text(), c.out_channels, c.kernel_size, c.stride,
                         text(c.normalization), c.input_gradient);
    };
    const auto known = std::find_if(convolutions.begin(), convolutions.end(),
                                    [&](const Convolution& c) { return key(c.description) == key(d); });
    if (known != convolutions.end())
      ++known->n_layers;
    else
      convolutions.push_back({d});
    return std::make_unique<NoConvolution>(d);
  }
};

struct Network {
  const char* name;
  int depth;
  const char* stem;
  int image, classes;
  std::int64_t batch;
};
constexpr Network kNetworks[] = {{"resnet18 at 32", 18, "cifar", 32, 10, 512},
                                 {"resnet50 at 224", 50, "imagenet", 224, 1000, 256}};

std::vector<Notes::Convolution> convolutions_of(const Network& network, Precision precision,
                                                const CudaContext& context) {
  Notes notes(context.described);
  graph::ParameterTable parameters;
  graph::Graph graph({.dtype = storage_type(precision),
                      .tf32 = precision == Precision::tf32,
                      .batch = network.batch,
                      .layout_batch = network.batch},
                     parameters);
  const auto n = static_cast<std::size_t>(network.batch);
  const graph::TensorId pixels =
      graph.memory().add("image", n * 3 * static_cast<std::size_t>(network.image * network.image), true);
  const graph::TensorId labels = graph.memory().add("label", n * sizeof(std::int32_t), true);
  const graph::TensorId sample_ids = graph.memory().add("sample_id", n * sizeof(std::uint32_t), true);
  const auto images = layers::image_input(
      graph, {.height = network.image, .width = network.image, .channels = 3, .mean = {0, 0, 0}, .stddev = {1, 1, 1}},
      pixels, sample_ids);
  Config::Model model;
  model.depth = network.depth;
  model.stem = network.stem;
  model.classes = network.classes;
  const auto logits = models::resnet(graph, images, model, {});
  layers::cross_entropy(graph, logits, labels, graph.add_exchange(sizeof(LossSums)));
  graph.plan(notes);
  return notes.convolutions;
}

class Table {
 public:
  Table(const CudaContext& context, bool build_all) : context_(context), build_all_(build_all) {}

  void add(const Network& network, Precision precision) {
    for (const auto& [description, n_layers] : convolutions_of(network, precision, context_)) {
      const std::vector<LeveledUnit> units = units_of(description, context_);
      const LeveledUnit& unit = units.front();
      std::string line = fmt::format("{}: {} x {}, {}: {}", network.name, n_layers, text(unit.unit.shape),
                                     text(description.normalization), name(unit.level));
      for (const ConvolutionGraph graph : graphs_of(description, unit.unit)) {
        // The bare data gradient only replaces a fused one that does not fit. It is not listed if there is a fused one.
        if (graph == ConvolutionGraph::data_gradient && unit.unit.has_fused_gradient()) continue;
        line += fmt::format("; {}: {}", name(graph), count_plans(graph, unit.unit.shape, context_));
      }
      compare_with_rules(unit.unit.shape);
      for (const LeveledUnit& leveled : units)
        for (const ConvolutionGraph graph : graphs_of(description, leveled.unit)) build(graph, leveled.unit.shape);
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
    }
  }
  bool all_built() const { return n_failed_ == 0; }
  void summarize() const { std::fprintf(stderr, "%d graphs built, %d failed\n", n_built_, n_failed_); }

 private:
  /// Compares with what `lockstep plan --device` predicts without cuDNN.
  void compare_with_rules(const ConvolutionShape& shape) {
    for (int i = 0; i < kConvolutionGraphs; ++i) {
      const auto graph = static_cast<ConvolutionGraph>(i);
      const bool offline = has_plan_offline(graph, shape, context_.compute_capability);
      if (offline == (count_plans(graph, shape, context_) > 0)) continue;
      ++n_failed_;
      std::fprintf(stderr, "%s, %s: conv2d_bare.cpp predicts %s plan, but cuDNN has %s\n", name(graph),
                   text(shape).c_str(), offline ? "a" : "no", offline ? "none" : "one");
    }
  }

  void build(ConvolutionGraph graph, const ConvolutionShape& shape) {
    const std::string_view precision = shape.tf32 ? "tf32" : lockstep::name(shape.dtype);
    const std::string key = fmt::format("{}, {}", name(graph), build_all_ ? text(shape) : std::string(precision));
    if (!built_.insert(key).second) return;
    const auto begin = std::chrono::steady_clock::now();
    // Plans that end in reductions are chosen only by timing; of those that may be chosen, the first compiles faster.
    Algorithms untimed;
    CudaContext context = context_;
    if (ends_in_reductions(graph, shape)) context.algorithms = &untimed;
    const auto plan = plan_convolution(graph, shape, context);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++(plan ? n_built_ : n_failed_);
    std::fprintf(
        stderr, "%5.1f s  %s, %s: %s\n", seconds, name(graph), text(shape).c_str(),
        plan ? fmt::format("{}, workspace {} bytes", plan->plan(), plan->workspace_bytes()).c_str() : "FAILED");
  }

  CudaContext context_;
  bool build_all_;
  std::set<std::string> built_;
  int n_built_ = 0, n_failed_ = 0;
};

/// Checks the odd shapes of the tests at the level that is used if nothing can be fused. There, a separate kernel
/// computes a normalization, and channels are then not padded. Returns the number of graphs without a plan.
int check_tested_shapes(const CudaContext& context) {
  std::vector<test::ConvolutionCase> cases(std::begin(test::kBf16Cases), std::end(test::kBf16Cases));
  cases.insert(cases.end(), std::begin(test::kFp16Cases), std::end(test::kFp16Cases));
  int n_planned = 0, n_failed = 0;
  std::set<std::string> seen;
  for (const test::ConvolutionCase& shape : cases)
    for (const DType dtype : {DType::fp16, DType::bf16})
      for (const auto& normalization : {std::optional<InputNormalization>(), std::optional(InputNormalization{})}) {
        Conv2dDescription d = test::describe(shape, normalization);
        if (d.normalization) d.input_gradient = true;
        d.dtype = dtype;
        const ConvolutionUnit unit = unit_at(Level::passes, d, context);
        for (const ConvolutionGraph graph : graphs_of(d, unit)) {
          const std::string key = fmt::format("{}, {}", name(graph), text(unit.shape));
          if (!seen.insert(key).second) continue;
          const bool is_planned = plan_convolution(graph, unit.shape, context) != nullptr;
          ++(is_planned ? n_planned : n_failed);
          if (!is_planned) std::fprintf(stderr, "no plan: %s\n", key.c_str());
        }
      }
  std::fprintf(stderr, "%d graphs of the tests have plans, %d do not\n", n_planned, n_failed);
  return n_failed;
}

struct LanguageModel {
  const char* name;
  std::int64_t sequence, heads, kv_heads, head_dim, window;
  std::vector<DType> dtypes;
  std::vector<bool> documents;
};
const LanguageModel kLanguageModels[] = {
    {"smollm-135m", 1024, 9, 3, 64, 0, {DType::bf16, DType::fp16}, {false, true}},
    {"qwen2-0.5b", 1024, 14, 2, 64, 0, {DType::bf16, DType::fp16}, {false, true}},
    {"gemma-3-270m, global", 1000, 4, 1, 256, 0, {DType::bf16}, {false}},
    {"gemma-3-270m, local", 1024, 4, 1, 256, 512, {DType::bf16}, {true}},
};

/// 8 samples. Prints the workspace of each graph that the op may use, for all samples, and how the op uses the graphs.
/// Returns the number of graphs without a plan.
int add_attention(const LanguageModel& model, DType dtype, bool documents, const CudaContext& context) {
  const AttentionDescription d{.batch = 8,
                               .sequence = model.sequence,
                               .heads = model.heads,
                               .kv_heads = model.kv_heads,
                               .head_dim = model.head_dim,
                               .dtype = dtype,
                               .window = model.window,
                               .documents = documents};
  AttentionShape shape{d, d.batch, d.kv_heads};
  std::string line = fmt::format("{}: {}{}", model.name, text(shape), documents ? ", documents" : "");
  int n_failed = 0;
  for (int i = 0; i < kAttentionGraphs; ++i) {
    const auto graph = static_cast<AttentionGraph>(i);
    const bool is_deterministic = graph == AttentionGraph::deterministic_backward;
    if (documents) shape.kept_apart = documents_on(context.compute_capability, is_deterministic);
    const auto begin = std::chrono::steady_clock::now();
    const auto plan = plan_attention(graph, shape, context);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!plan && may_have_plan(shape, context.compute_capability)) ++n_failed;
    const std::size_t expected = expected_workspace_bytes(graph, shape, context.compute_capability);
    if (plan && (shape.is_ragged() ? plan->workspace_bytes() > expected : plan->workspace_bytes() != expected)) {
      ++n_failed;
      std::fprintf(stderr, "attention_bare.cpp expects a workspace of %zu bytes\n", expected);
    }
    const std::string result =
        plan ? fmt::format("{}, workspace {} bytes", plan->plan(), plan->workspace_bytes()) : "no plan";
    line += fmt::format("; {}: {}", name(graph), result);
    std::fprintf(stderr, "%5.1f s  %s, %s: %s\n", seconds, name(graph), text(shape).c_str(), result.c_str());
  }
  Algorithms algorithms;
  for (const bool reproducible : {false, true}) {
    CudaContext with = context;
    with.algorithms = reproducible ? nullptr : &algorithms;
    const auto op = make_op({typeid(d), AttentionDescription::kName, &d}, with);
    line += fmt::format("\n  {}: {}", reproducible ? "reproducible" : "fastest", op->describe());
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  return n_failed;
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: plans DEVICE_DESCRIPTION.json [--all|--attention]\n");
    return 2;
  }
  const auto described = std::make_shared<DeviceDescription>(read_device_description(argv[1]));
  const CudaContext context{.multiprocessors = described->multiprocessors,
                            .compute_capability = described->compute_capability,
                            .memory_bytes = described->memory_bytes,
                            .device_name = described->name,
                            .described = described};
  if (argc > 2 && std::strcmp(argv[2], "--version") == 0) {
    std::printf("%s\n", cudnn_version().c_str());
    return 0;
  }
  if (argc > 2 && std::strcmp(argv[2], "--attention") == 0) {
    std::printf("# Attention on %s.\n", described->name.c_str());
    return add_attention(kLanguageModels[0], DType::bf16, true, context) == 0 ? 0 : 1;
  }
  Table table(context, argc > 2 && std::strcmp(argv[2], "--all") == 0);
  std::printf("# Graphs of each convolution on %s, and how many plans each has.\n",
              convolution_device(context).c_str());
  for (const Network& network : kNetworks)
    for (const Precision precision : {Precision::fp16, Precision::bf16, Precision::tf32, Precision::fp32})
      table.add(network, precision);
  table.summarize();
  int n_failed = check_tested_shapes(context);
  for (const LanguageModel& model : kLanguageModels)
    for (const DType dtype : model.dtypes)
      for (const bool documents : model.documents) n_failed += add_attention(model, dtype, documents, context);
  return table.all_built() && n_failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::cuda

int main(int argc, char** argv) {
  try {
    return lockstep::cuda::run(argc, argv);
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "plans: %s\n", error.what());
    return error.code() == lockstep::ErrorCode::not_supported ? 77 : 1;
  }
}
