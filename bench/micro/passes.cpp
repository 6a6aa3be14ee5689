// The memory-bound ops: batch norm, pooling, loss, image input, optimizers, norms, sums, hash; the matmul of the last
// layer; and attention. Unless stated otherwise, sizes are those of ResNet-18 at 32x32, batch 32.
#include <array>

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
  const auto plan = [shape] {
    return backend().make(BatchNormDescription{.x = shape,
                                               .dtype = dtype(),
                                               .layout = activation_layout(shape),
                                               .n_rows = static_cast<double>(shape[0] * shape[1] * shape[2])});
  };
  const std::int64_t n = shape.n_elements(), channels = shape[3];
  add("batch_norm/" + text(shape) + "/finalize", [=](benchmark::State& state) {
    Arguments arguments;
    const auto op = plan();
    const OpMemory memory = arguments.memory_of(*op);
    const auto stream = backend().make_stream();
    const BatchNorm::Finalize args{.statistics = arguments.make<double>(2 * channels),
                                   .gamma = arguments.make(channels),
                                   .beta = arguments.make(channels),
                                   .scale_bias = arguments.make(2 * channels),
                                   .mean_inverse_stddev = arguments.make(2 * channels),
                                   .batch_statistics = arguments.make(2 * channels)};
    // Per channel: 2 values in fp64, and 2 + 6 in fp32.
    measure(
        state, [&] { op->finalize(args, memory, *stream); }, 0, 12 * kFloatBytes * static_cast<double>(channels));
  });
  add("batch_norm/" + text(shape) + "/backward", [=](benchmark::State& state) {
    Arguments arguments;
    const auto op = plan();
    const OpMemory memory = arguments.memory_of(*op);
    const auto stream = backend().make_stream();
    const double* sums = arguments.make<double>(2 * channels);
    const BatchNorm::Backward args{.sums = sums,
                                   .local_sums = sums,
                                   .dz = arguments.tensor(n),
                                   .x = arguments.tensor(n),
                                   .gamma = arguments.make(channels),
                                   .mean_inverse_stddev = arguments.make(2 * channels),
                                   .dx = arguments.tensor(n),
                                   .dgamma = arguments.make(channels),
                                   .dbeta = arguments.make(channels)};
    measure(
        state, [&] { op->backward(args, memory, *stream); }, 0, 3 * element_bytes() * static_cast<double>(n));
  });
}

/// Adds two benchmarks, forward and backward, of a planned op with its arguments. A `Planned` is constructed from
/// `argument`.
template <typename Planned, typename Argument>
void add_both(const std::string& name, const Argument& argument) {
  add(name + "/forward", [argument](benchmark::State& state) {
    Planned planned(argument);
    const auto stream = backend().make_stream();
    measure(
        state, [&] { planned.op->forward(planned.forward, planned.memory, *stream); }, 0, planned.forward_bytes);
  });
  add(name + "/backward", [argument](benchmark::State& state) {
    Planned planned(argument);
    const auto stream = backend().make_stream();
    planned.op->forward(planned.forward, planned.memory, *stream);
    measure(
        state, [&] { planned.op->backward(planned.backward, planned.memory, *stream); }, 0, planned.backward_bytes);
  });
}

/// `in_network`: the input has a pending normalisation with ReLU, as after ResNet-50's first convolution.
void add_pool(const std::string& name, Pool2dDescription d, bool in_network = false) {
  d.dtype = dtype();
  d.y_dtype = d.kernel_size == 0 ? DType::fp32 : d.dtype;  // the output of the head is fp32
  d.x_layout = activation_layout(d.x);
  d.y_layout = d.kernel_size == 0 ? Layout::nhwc : activation_layout(d.y());
  if (in_network) d.normalization = InputNormalization{};
  struct Planned {
    explicit Planned(const Pool2dDescription& d) : op(backend().make(d)), memory(arguments.memory_of(*op)) {
      const std::int64_t n_x = d.x.n_elements(), n_y = d.y().n_elements();
      forward.x = backward.x = arguments.tensor(n_x);
      const bool is_head = d.kernel_size == 0;  // which computes in fp32
      forward.y = is_head ? arguments.make(n_y) : arguments.tensor(n_y);
      backward.dy = is_head ? arguments.make(n_y) : arguments.tensor(n_y);
      if (d.normalization) {
        forward.normalization.scale_bias = arguments.make(2 * d.x[3]);
        forward.normalization.low_precision_scale_bias = arguments.tensor(2 * d.x[3]);
        backward.normalization = forward.normalization;
        backward.gradient.mean_inverse_stddev = arguments.make(2 * d.x[3]);
        backward.gradient.dz = arguments.tensor(n_x);
        backward.gradient.sums = arguments.make<double>(2 * d.x[3]);
      } else {
        backward.dx = arguments.tensor(n_x);
      }
      forward_bytes = backward_bytes = element_bytes() * static_cast<double>(n_x + n_y);
    }
    Arguments arguments;
    std::unique_ptr<Pool2d> op;
    OpMemory memory;
    Pool2d::Forward forward;
    Pool2d::Backward backward;
    double forward_bytes = 0, backward_bytes = 0;
  };
  add_both<Planned>(name + "/" + text(d.x), d);
}

void add_loss(std::int64_t classes) {
  struct Planned {
    explicit Planned(std::int64_t classes)
        : op(backend().make(SoftmaxCrossEntropyDescription{
              .rows = kBatch, .classes = classes, .label_smoothing = 0.1f, .dtype = dtype()})),
          memory(arguments.memory_of(*op)) {
      const void* logits = arguments.tensor(kBatch * classes);
      const auto* labels = arguments.make<std::int32_t>(kBatch);
      auto* scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
      *scalars = {.loss_weight = 1.0f / kBatch};
      forward = {.logits = logits, .labels = labels, .sums = static_cast<LossSums*>(arguments.bytes(sizeof(LossSums)))};
      backward = {
          .logits = logits, .labels = labels, .scalars = scalars, .dlogits = arguments.tensor(kBatch * classes)};
      forward_bytes = element_bytes() * static_cast<double>(kBatch * classes);
      backward_bytes = 2 * forward_bytes;
    }
    Arguments arguments;
    std::unique_ptr<SoftmaxCrossEntropy> op;
    OpMemory memory;
    SoftmaxCrossEntropy::Forward forward;
    SoftmaxCrossEntropy::Backward backward;
    double forward_bytes = 0, backward_bytes = 0;
  };
  const std::string name = "cross_entropy/" + std::to_string(kBatch) + "x" + std::to_string(classes);
  add_both<Planned>(name, classes);
}

void image_input(benchmark::State& state) {
  Arguments arguments;
  const Shape shape{kBatch, 32, 32, 3};
  const auto op = backend().make(ImageInputDescription{.x = shape,
                                                       .dtype = dtype(),
                                                       .mean = {0.5f, 0.5f, 0.5f},
                                                       .stddev = {0.2f, 0.2f, 0.2f},
                                                       .crop_padding = 4,
                                                       .flip = true,
                                                       .seed = 1});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  auto* ids = arguments.make<std::uint32_t>(kBatch);
  for (std::int64_t i = 0; i < kBatch; ++i) ids[i] = static_cast<std::uint32_t>(i);
  auto* scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {};
  const ImageInput::Forward args{.images = arguments.make<std::uint8_t>(shape.n_elements()),
                                 .sample_ids = ids,
                                 .scalars = scalars,
                                 .y = arguments.tensor(shape.n_elements())};
  measure(
      state, [&] { op->forward(args, memory, *stream); }, 0,
      (1 + element_bytes()) * static_cast<double>(shape.n_elements()));
}

void optimizer(benchmark::State& state, OptimizerDescription d) {
  Arguments arguments;
  d.segments = {{.begin = 0, .n_elements = kParameters}};
  d.n_elements = kParameters;
  d.weight_decay = 5e-4f;
  d.weight_dtype = dtype();
  const auto op = backend().make(d);
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  auto* scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {.learning_rate = 1e-6f};
  const Optimizer::Apply args{.parameters = arguments.make(kParameters),
                              .weights = arguments.tensor(kParameters),
                              .gradients = arguments.make(kParameters),
                              .state = static_cast<float*>(arguments.bytes(4 * kParameters * d.n_states())),
                              .scalars = scalars};
  // Parameters and optimizer states are read and written, gradients are read, and 16-bit weights are written.
  const double weight_bytes = dtype() == DType::fp32 ? 0 : element_bytes();
  measure(
      state, [&] { op->apply(args, memory, *stream); }, 0,
      kParameters * (kFloatBytes * (3 + 2 * d.n_states()) + weight_bytes));
}

void clip_norm(benchmark::State& state) {
  Arguments arguments;
  const ClipNormDescription d{
      .segments = {{.begin = 0, .n_elements = kParameters}}, .max_norm = 1, .ranges = {{0, kParameters}}};
  const auto op = backend().make(d);
  const auto stream = backend().make_stream();
  auto* scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {};
  auto* sums = static_cast<LossSums*>(arguments.bytes(sizeof(LossSums)));
  *sums = {.loss = 1, .count = 1, .weight = 1};
  const ClipNorm::SumTiles tiles{.gradients = arguments.make(kParameters),
                                 .tile_sums = arguments.make<double>(count_tiles(d.segments)),
                                 .range = 0};
  const ClipNorm::Apply args{
      .tile_sums = tiles.tile_sums, .sums = sums, .scalars = scalars, .norm = arguments.make<double>(1)};
  measure(
      state,
      [&] {
        op->sum_tiles(tiles, *stream);
        op->apply(args, *stream);
      },
      0, kFloatBytes * kParameters);
}

void hash(benchmark::State& state) {
  Arguments arguments;
  const auto op = backend().make(HashDescription{.size_bytes = 4 * kParameters});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  const Hash::Apply args{.data = arguments.make(kParameters), .hash = arguments.make<std::uint64_t>(1)};
  measure(
      state, [&] { op->apply(args, memory, *stream); }, 0, kFloatBytes * kParameters);
}

// A leaf of the tree over 4 micro-batches: its value, one open sum, and the target.
void ordered_sum(benchmark::State& state) {
  Arguments arguments;
  const auto op = backend().make(OrderedSumDescription{});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  const std::array<const void*, 1> open{arguments.make(kParameters)};
  const OrderedSum::Apply args{.value = arguments.make(kParameters),
                               .open = open,
                               .target = arguments.make(kParameters),
                               .n_elements = kParameters};
  measure(
      state, [&] { op->apply(args, memory, *stream); }, 0, 3 * kFloatBytes * kParameters);
}

void moving_average(benchmark::State& state) {
  constexpr std::int64_t kStatistics = 9600;  // means and variances of ResNet-18
  Arguments arguments;
  const auto op = backend().make(MovingAverageDescription{.n_elements = kStatistics});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  auto* scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {};
  const MovingAverage::Apply args{
      .running = arguments.make(kStatistics), .batch = arguments.make(kStatistics), .scalars = scalars};
  measure(
      state, [&] { op->apply(args, memory, *stream); }, 0, 3 * kFloatBytes * kStatistics);
}

void add_matmul(std::int64_t in, std::int64_t out) {
  struct Planned {
    Planned(std::int64_t in, std::int64_t out)
        : op(backend().make(
              MatmulDescription{.rows = kBatch, .in_features = in, .out_features = out, .dtype = dtype()})),
          memory(arguments.memory_of(*op)) {
      const auto n_weight = static_cast<std::int64_t>(op->weight_layout()->n_elements());
      forward = {.x = arguments.tensor(kBatch * in),
                 .weight = arguments.tensor(n_weight),
                 .bias = arguments.tensor(out),
                 .y = arguments.tensor(kBatch * out)};
      backward = {.dy = arguments.tensor(kBatch * out),
                  .x = forward.x,
                  .weight = forward.weight,
                  .dx = arguments.tensor(kBatch * in),
                  .dweight = arguments.make(n_weight),
                  .dbias = arguments.make(out)};
      flops = 2.0 * static_cast<double>(kBatch * in * out);
      bytes = kFloatBytes * static_cast<double>(n_weight) + element_bytes() * static_cast<double>(kBatch * (in + out));
    }
    Arguments arguments;
    std::unique_ptr<Matmul> op;
    OpMemory memory;
    Matmul::Forward forward;
    Matmul::Backward backward;
    double flops = 0, bytes = 0;  // of one direction
  };
  const std::string name = "matmul/" + std::to_string(kBatch) + "x" + std::to_string(in) + "-" + std::to_string(out);
  add(name + "/forward", [=](benchmark::State& state) {
    Planned planned(in, out);
    const auto stream = backend().make_stream();
    measure(
        state, [&] { planned.op->forward(planned.forward, planned.memory, *stream); }, planned.flops, planned.bytes);
  });
  const auto add_backward = [&](const char* direction, GradientMode dx, GradientMode parameters) {
    add(name + direction, [=](benchmark::State& state) {
      Planned planned(in, out);
      const auto stream = backend().make_stream();
      planned.op->forward(planned.forward, planned.memory, *stream);
      planned.backward.dx_mode = dx;
      planned.backward.parameter_mode = parameters;
      measure(
          state, [&] { planned.op->backward(planned.backward, planned.memory, *stream); }, planned.flops,
          planned.bytes);
    });
  };
  add_backward("/data_gradient", GradientMode::overwrite, GradientMode::skip);
  add_backward("/weight_gradient", GradientMode::skip, GradientMode::overwrite);
}

/// The shape of SmolLM-135M. Products of tokens that cannot attend to each other are not counted.
void add_attention(std::int64_t sequence) {
  struct Planned {
    explicit Planned(std::int64_t sequence)
        : op(backend().make(AttentionDescription{
              .batch = 1, .sequence = sequence, .heads = 9, .kv_heads = 3, .head_dim = 64, .dtype = dtype()})),
          memory(arguments.memory_of(*op)) {
      const std::int64_t n_y = sequence * 9 * 64, n_packed = sequence * 15 * 64;
      forward = {.qkv = arguments.tensor(n_packed), .y = arguments.tensor(n_y)};
      backward = {.qkv = forward.qkv, .y = forward.y, .dy = arguments.tensor(n_y), .dqkv = arguments.tensor(n_packed)};
      forward_flops = 2.0 * 64 * 9 * static_cast<double>(sequence * (sequence + 1));
      forward_bytes = element_bytes() * static_cast<double>(n_packed + n_y);
    }
    Arguments arguments;
    std::unique_ptr<Attention> op;
    OpMemory memory;
    Attention::Forward forward;
    Attention::Backward backward;
    double forward_flops = 0, forward_bytes = 0;
  };
  const std::string name = "attention/1x" + std::to_string(sequence) + "x9x64";
  add(name + "/forward", [sequence](benchmark::State& state) {
    Planned planned(sequence);
    const auto stream = backend().make_stream();
    measure(
        state, [&] { planned.op->forward(planned.forward, planned.memory, *stream); }, planned.forward_flops,
        planned.forward_bytes);
  });
  add(name + "/backward", [sequence](benchmark::State& state) {
    Planned planned(sequence);
    const auto stream = backend().make_stream();
    planned.op->forward(planned.forward, planned.memory, *stream);
    measure(
        state, [&] { planned.op->backward(planned.backward, planned.memory, *stream); }, 2.5 * planned.forward_flops,
        2 * planned.forward_bytes);
  });
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
  add_attention(256);
  add_attention(1024);
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
