// The memory-bound ops: batch norm, pooling, loss, image input, optimizers, norms, sums, hash; the matmul of the last
// layer; and attention. Unless stated otherwise, sizes are those of ResNet-18 at 32x32, batch 32.
#include <array>
#include <numeric>

#include "bench/micro/support.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/clip_norm.h"
#include "lockstep/ops/cross_entropy.h"
#include "lockstep/ops/hash.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/ops/moving_average.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/ops/ordered_sum.h"
#include "lockstep/ops/pool2d.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kParameters = 11'173'962;  // of ResNet-18 with 10 classes

std::string text(const Shape& s) {
  return std::to_string(s[1]) + "x" + std::to_string(s[2]) + "x" + std::to_string(s[3]);
}

void add_batch_norm(const Shape& shape) {
  const BatchNormDescription d{.x = shape,
                               .dtype = dtype(),
                               .layout = activation_layout(shape),
                               .n_rows = static_cast<double>(shape[0] * shape[1] * shape[2])};
  const std::int64_t n = shape.n_elements(), channels = shape[3];
  add("batch_norm/" + text(shape) + "/finalize", [=](benchmark::State& state) {
    Planned p(d);
    const BatchNorm::Finalize args{.statistics = p.arguments.make<double>(2 * channels),
                                   .gamma = p.arguments.make(channels),
                                   .beta = p.arguments.make(channels),
                                   .scale_bias = p.arguments.make(2 * channels),
                                   .mean_inverse_stddev = p.arguments.make(2 * channels),
                                   .batch_statistics = p.arguments.make(2 * channels)};
    // Per channel: 2 values in fp64, and 2 + 6 in fp32.
    measure(state, 0, 12 * kFloatBytes * static_cast<double>(channels),
            [&] { p.op->finalize(args, p.memory, *p.stream); });
  });
  add("batch_norm/" + text(shape) + "/backward", [=](benchmark::State& state) {
    Planned p(d);
    const double* sums = p.arguments.make<double>(2 * channels);
    const BatchNorm::Backward args{.sums = sums,
                                   .local_sums = sums,
                                   .dz = p.arguments.tensor(n),
                                   .x = p.arguments.tensor(n),
                                   .gamma = p.arguments.make(channels),
                                   .mean_inverse_stddev = p.arguments.make(2 * channels),
                                   .dx = p.arguments.tensor(n),
                                   .dgamma = p.arguments.make(channels),
                                   .dbeta = p.arguments.make(channels)};
    measure(state, 0, 3 * element_bytes() * static_cast<double>(n), [&] { p.op->backward(args, p.memory, *p.stream); });
  });
}

/// `in_network`: the input has a pending normalisation with ReLU, as after ResNet-50's first convolution.
void add_pool(const std::string& name, Pool2dDescription d, bool in_network = false) {
  d.dtype = dtype();
  d.y_dtype = d.kernel_size == 0 ? DType::fp32 : d.dtype;  // the output of the head is fp32
  d.x_layout = activation_layout(d.x);
  d.y_layout = d.kernel_size == 0 ? Layout::nhwc : activation_layout(d.y());
  if (in_network) d.normalization = InputNormalization{};
  const auto plan = [d] {
    PlannedBoth p(d);
    Arguments& arguments = p.arguments;
    const std::int64_t n_x = d.x.n_elements(), n_y = d.y().n_elements();
    p.forward.x = p.backward.x = arguments.tensor(n_x);
    const bool is_head = d.kernel_size == 0;  // which computes in fp32
    p.forward.y = is_head ? arguments.make(n_y) : arguments.tensor(n_y);
    p.backward.dy = is_head ? arguments.make(n_y) : arguments.tensor(n_y);
    if (d.normalization) {
      p.forward.normalization.scale_bias = arguments.make(2 * d.x[3]);
      p.forward.normalization.low_precision_scale_bias = arguments.tensor(2 * d.x[3]);
      p.backward.normalization = p.forward.normalization;
      p.backward.gradient.mean_inverse_stddev = arguments.make(2 * d.x[3]);
      p.backward.gradient.dz = arguments.tensor(n_x);
      p.backward.gradient.sums = arguments.make<double>(2 * d.x[3]);
    } else {
      p.backward.dx = arguments.tensor(n_x);
    }
    p.bytes = element_bytes() * static_cast<double>(n_x + n_y);
    return p;
  };
  add_both(name + "/" + text(d.x), plan, 0, 1);
}

void add_loss(std::int64_t classes) {
  const auto plan = [classes] {
    PlannedBoth p(
        SoftmaxCrossEntropyDescription{.rows = kBatch, .classes = classes, .label_smoothing = 0.1f, .dtype = dtype()});
    Arguments& arguments = p.arguments;
    const void* logits = arguments.tensor(kBatch * classes);
    const auto* labels = arguments.make<std::int32_t>(kBatch);
    p.forward = {.logits = logits, .labels = labels, .sums = arguments.value(LossSums{})};
    p.backward = {.logits = logits,
                  .labels = labels,
                  .scalars = arguments.value(StepScalars{.loss_weight = 1.0f / kBatch}),
                  .dlogits = arguments.tensor(kBatch * classes)};
    p.bytes = element_bytes() * static_cast<double>(kBatch * classes);
    return p;
  };
  add_both("cross_entropy/" + std::to_string(kBatch) + "x" + std::to_string(classes), plan, 0, 2);
}

void image_input(benchmark::State& state) {
  const Shape shape{kBatch, 32, 32, 3};
  Planned p(ImageInputDescription{.x = shape,
                                  .dtype = dtype(),
                                  .mean = {0.5f, 0.5f, 0.5f},
                                  .stddev = {0.2f, 0.2f, 0.2f},
                                  .crop_padding = 4,
                                  .flip = true,
                                  .seed = 1});
  auto* ids = p.arguments.make<std::uint32_t>(kBatch);
  std::iota(ids, ids + kBatch, 0u);
  const ImageInput::Forward args{.images = p.arguments.make<std::uint8_t>(shape.n_elements()),
                                 .sample_ids = ids,
                                 .scalars = p.arguments.value(StepScalars{}),
                                 .y = p.arguments.tensor(shape.n_elements())};
  measure(state, 0, (1 + element_bytes()) * static_cast<double>(shape.n_elements()),
          [&] { p.op->forward(args, p.memory, *p.stream); });
}

void optimizer(benchmark::State& state, OptimizerDescription d) {
  d.segments = {{.begin = 0, .n_elements = kParameters}};
  d.n_elements = kParameters;
  d.weight_decay = 5e-4f;
  d.weight_dtype = dtype();
  Planned p(d);
  const Optimizer::Apply args{.parameters = p.arguments.make(kParameters),
                              .weights = p.arguments.tensor(kParameters),
                              .gradients = p.arguments.make(kParameters),
                              .state = static_cast<float*>(p.arguments.bytes(4 * kParameters * d.n_states())),
                              .scalars = p.arguments.value(StepScalars{.learning_rate = 1e-6f})};
  // Parameters and optimizer states are read and written, gradients are read, and 16-bit weights are written.
  const double weight_bytes = dtype() == DType::fp32 ? 0 : element_bytes();
  measure(state, 0, kParameters * (kFloatBytes * (3 + 2 * d.n_states()) + weight_bytes),
          [&] { p.op->apply(args, p.memory, *p.stream); });
}

void clip_norm(benchmark::State& state) {
  const ClipNormDescription d{
      .segments = {{.begin = 0, .n_elements = kParameters}}, .max_norm = 1, .ranges = {{0, kParameters}}};
  Planned p(d);
  const ClipNorm::SumTiles tiles{.gradients = p.arguments.make(kParameters),
                                 .tile_sums = p.arguments.make<double>(count_tiles(d.segments)),
                                 .range = 0};
  const ClipNorm::Apply args{.tile_sums = tiles.tile_sums,
                             .sums = p.arguments.value(LossSums{.loss = 1, .count = 1, .weight = 1}),
                             .scalars = p.arguments.value(StepScalars{}),
                             .norm = p.arguments.make<double>(1)};
  measure(state, 0, kFloatBytes * kParameters, [&] {
    p.op->sum_tiles(tiles, *p.stream);
    p.op->apply(args, *p.stream);
  });
}

void hash(benchmark::State& state) {
  Planned p(HashDescription{.size_bytes = 4 * kParameters});
  const Hash::Apply args{.data = p.arguments.make(kParameters), .hash = p.arguments.make<std::uint64_t>(1)};
  measure(state, 0, kFloatBytes * kParameters, [&] { p.op->apply(args, p.memory, *p.stream); });
}

// A leaf of the tree over 4 micro-batches: its value, one open sum, and the target.
void ordered_sum(benchmark::State& state) {
  Planned p(OrderedSumDescription{});
  const std::array<const void*, 1> open{p.arguments.make(kParameters)};
  const OrderedSum::Apply args{.value = p.arguments.make(kParameters),
                               .open = open,
                               .target = p.arguments.make(kParameters),
                               .n_elements = kParameters};
  measure(state, 0, 3 * kFloatBytes * kParameters, [&] { p.op->apply(args, p.memory, *p.stream); });
}

void moving_average(benchmark::State& state) {
  constexpr std::int64_t kStatistics = 9600;  // means and variances of ResNet-18
  Planned p(MovingAverageDescription{.n_elements = kStatistics});
  const MovingAverage::Apply args{.running = p.arguments.make(kStatistics),
                                  .batch = p.arguments.make(kStatistics),
                                  .scalars = p.arguments.value(StepScalars{})};
  measure(state, 0, 3 * kFloatBytes * kStatistics, [&] { p.op->apply(args, p.memory, *p.stream); });
}

void add_matmul(std::int64_t in, std::int64_t out) {
  const auto plan = [=] {
    PlannedBoth p(MatmulDescription{.rows = kBatch, .in_features = in, .out_features = out, .dtype = dtype()});
    Arguments& arguments = p.arguments;
    const auto n_weight = static_cast<std::int64_t>(p.op->weight_layout()->n_elements());
    p.forward = {.x = arguments.tensor(kBatch * in),
                 .weight = arguments.tensor(n_weight),
                 .bias = arguments.tensor(out),
                 .y = arguments.tensor(kBatch * out)};
    p.backward = {.dy = arguments.tensor(kBatch * out),
                  .x = p.forward.x,
                  .weight = p.forward.weight,
                  .dx = arguments.tensor(kBatch * in),
                  .dweight = arguments.make(n_weight),
                  .dbias = arguments.make(out)};
    p.flops = 2.0 * static_cast<double>(kBatch * in * out);
    p.bytes = kFloatBytes * static_cast<double>(n_weight) + element_bytes() * static_cast<double>(kBatch * (in + out));
    return p;
  };
  const std::string name = "matmul/" + std::to_string(kBatch) + "x" + std::to_string(in) + "-" + std::to_string(out);
  add_forward(name, plan);
  add_backward(name + "/data_gradient", plan, 1, 1,
               [](Matmul::Backward& args) { args.parameter_mode = GradientMode::skip; });
  add_backward(name + "/weight_gradient", plan, 1, 1,
               [](Matmul::Backward& args) { args.dx_mode = GradientMode::skip; });
}

struct Heads {
  std::int64_t heads, kv_heads, head_dim;
};
constexpr Heads kSmolLm135m{9, 3, 64}, kGemma270m{4, 1, 256};

/// Products of tokens that cannot attend to each other are not counted. `window` 0: there is none.
void add_attention(const Heads& h, std::int64_t sequence, std::int64_t window = 0) {
  const auto plan = [=] {
    PlannedBoth p(AttentionDescription{.batch = 1,
                                       .sequence = sequence,
                                       .heads = h.heads,
                                       .kv_heads = h.kv_heads,
                                       .head_dim = h.head_dim,
                                       .dtype = dtype(),
                                       .window = window});
    const std::int64_t n_y = sequence * h.heads * h.head_dim, n_packed = n_y + 2 * sequence * h.kv_heads * h.head_dim;
    p.forward = {.qkv = p.arguments.tensor(n_packed), .y = p.arguments.tensor(n_y)};
    p.backward = {
        .qkv = p.forward.qkv, .y = p.forward.y, .dy = p.arguments.tensor(n_y), .dqkv = p.arguments.tensor(n_packed)};
    const std::int64_t hidden = window > 0 ? sequence - window : 0;  // tokens before the window of the last one
    p.flops = 2.0 * static_cast<double>(h.heads * h.head_dim * (sequence * (sequence + 1) - hidden * (hidden + 1)));
    p.bytes = element_bytes() * static_cast<double>(n_packed + n_y);
    return p;
  };
  const std::string of_window = window > 0 ? "/window_" + std::to_string(window) : "";
  add_both("attention/1x" + std::to_string(sequence) + "x" + std::to_string(h.heads) + "x" +
               std::to_string(h.head_dim) + of_window,
           plan, 2.5, 2);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;         // NOLINT
  using namespace lockstep::bench;  // NOLINT
  for (const Shape& shape :
       {Shape{kBatch, 32, 32, 64}, Shape{kBatch, 16, 16, 128}, Shape{kBatch, 8, 8, 256}, Shape{kBatch, 4, 4, 512}})
    add_batch_norm(shape);
  add_pool("max_pool", {.kind = Pool2dDescription::Kind::max, .x = {kBatch, 32, 32, 64}});
  add_pool("max_pool_unit", {.kind = Pool2dDescription::Kind::max, .x = {kBatch, 32, 32, 64}}, true);
  add_pool("average_pool", {.kind = Pool2dDescription::Kind::average,
                            .x = {kBatch, 4, 4, 512},
                            .kernel_size = 0,
                            .stride = 1,
                            .padding = 0});
  add_matmul(512, 10);
  add_matmul(2048, 1000);
  add_attention(kSmolLm135m, 256);
  add_attention(kSmolLm135m, 1024);
  for (const std::int64_t window : {0, 2048, 1024, 512, 128}) add_attention(kGemma270m, 4096, window);
  add_loss(10);
  add_loss(1000);
  add("image_input/32x32x3", image_input);
  add("sgd/11.2M", [](benchmark::State& state) { optimizer(state, {.kind = OptimizerDescription::Kind::sgd}); });
  add("sgd_momentum/11.2M",
      [](benchmark::State& state) { optimizer(state, {.kind = OptimizerDescription::Kind::sgd, .momentum = 0.9f}); });
  add("adamw/11.2M", [](benchmark::State& state) { optimizer(state, {.kind = OptimizerDescription::Kind::adamw}); });
  add("lars/11.2M",
      [](benchmark::State& state) { optimizer(state, {.kind = OptimizerDescription::Kind::lars, .momentum = 0.9f}); });
  add("clip_norm/11.2M", clip_norm);
  add("moving_average/9600", moving_average);
  add("ordered_sum/11.2M", ordered_sum);
  add("hash/11.2M", hash);
  return run_all(argc, argv);
}
