// The planned ops: describe, plan (a backend's factory takes the description; workspace is then known), execute.
//
// Descriptions are structs with named fields; arguments carry only pointers, since all shapes were checked
// when planning. No op allocates, and none keeps pointers between calls.
// Letters: include/lockstep/shape.h. The gradient of `x` is `dx`. All pointers are memory of the op's backend.
//
// The fusable unit. What a cuDNN graph can do in one kernel is one op here; a backend that cannot does it in
// passes and says so in Op::describe(). The input of a convolution or pooling may be a *pending normalisation*:
//     z = act(scale * x + bias)                                   residual none
//     z = act(scale * x + bias + r)                               residual plain
//     z = act((scale * x + bias) + (scale2 * r + bias2))          residual normalized
// with act = ReLU or identity, and scale, bias (C) as batch norm's `finalize` made them. Backward through it gives
//     dz   = act'(z) * (data gradient + added)          the gradient before the activation
//     sums = (sum dz, sum dz * x_hat), x_hat = (x - mean) * inverse_stddev, over all rows, per channel
// and the batch norm's `backward` turns dz and (all-reduced) sums into dx. The gradient of a plain residual is dz
// itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/loss_scale.h"
#include "lockstep/shape.h"

namespace lockstep {

class Stream;  // backend.h

/// What backward does with the memory of a gradient.
enum class GradientMode : std::uint8_t { skip, overwrite, accumulate };

/// How an activation lies in memory. Interfaces, tests and files use nhwc;
/// inside a graph a backend may ask for channel blocks of 16, (N, C/16, H, W, 16).
enum class Layout : std::uint8_t { nhwc, nchw16c };
constexpr std::string_view name(Layout layout) { return layout == Layout::nhwc ? "nhwc" : "nchw16c"; }

/// Bytes an op wants besides its arguments. Workspaces live for one call; `saved` from forward to backward.
struct OpNeeds {
  std::size_t forward_workspace_bytes = 0;
  std::size_t backward_workspace_bytes = 0;
  std::size_t saved_bytes = 0;
};

struct OpMemory {
  void* workspace = nullptr;  // 64-byte aligned, contents undefined on entry
  void* saved = nullptr;
};

class Op {
 public:
  virtual ~Op() = default;
  virtual OpNeeds needs() const = 0;
  /// One line for `lockstep plan`: the algorithm chosen, and which parts of the unit are fused or passes.
  virtual std::string describe() const = 0;
};

/// How a parameter lies in memory. Files hold the canonical form: row-major, no padding, fp32.
/// Padding, if any, is zero after pack() and stays zero: gradients write zeros there.
class ParameterLayout {
 public:
  virtual ~ParameterLayout() = default;
  virtual std::size_t n_elements() const = 0;  // padding included
  virtual void pack(std::span<const float> canonical, float* parameter) const = 0;
  virtual void unpack(const float* parameter, std::span<float> canonical) const = 0;
  virtual std::string describe() const = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// Pending normalisation of an input

struct InputNormalization {
  enum class Residual : std::uint8_t { none, plain, normalized };
  Residual residual = Residual::none;
  bool relu = true;
  bool store = false;  // others read z too: write it to NormalizationForward::z
};

struct NormalizationForward {
  const float* scale_bias = nullptr;           // (2, C): scale, then bias
  const void* residual = nullptr;              // shape of x
  const float* residual_scale_bias = nullptr;  // (2, C), residual normalized
  void* z = nullptr;                           // shape of x, written if `store`
};

struct NormalizationBackward {
  const float* mean_inverse_stddev = nullptr;           // (2, C): mean, then 1 / sqrt(variance + epsilon)
  const float* residual_mean_inverse_stddev = nullptr;  // (2, C), residual normalized
  const void* added = nullptr;                          // shape of x or null: another gradient of z
  void* dz = nullptr;                                   // shape of x, overwritten; may be `added`
  double* sums = nullptr;                               // (2, C), overwritten: sum dz, sum dz * x_hat
  double* residual_sums = nullptr;                      // (2, C), residual normalized: sum dz, sum dz * r_hat
};

// ---------------------------------------------------------------------------------------------------------------
// Convolution (cross-correlation), no bias: y[n,h,w,k] = sum_{r,s,c} z[n, h*stride+r-pad, w*stride+s-pad, c] w[k,c,r,s]

struct Conv2dDescription {
  Shape x;  // (N, H, W, C)
  std::int64_t out_channels = 0;
  int window = 3;  // R = S
  int stride = 1;
  int padding = 1;
  DType dtype = DType::fp32;  // of x, y, weights in compute
  bool tf32 = false;          // fp32 may be rounded to tf32 inside the multiply
  Layout x_layout = Layout::nhwc;
  Layout y_layout = Layout::nhwc;
  std::optional<InputNormalization> normalization{};       // of x
  bool statistics = false;                                 // of y: sum and sum of squares per output channel
  bool input_gradient = true;                              // false: the network's first layer
  bool inference = false;                                  // backward is never called
  std::shared_ptr<const ParameterLayout> weight_layout{};  // null: the op's choice

  /// (N, H', W', K)
  Shape y() const {
    return {x[0], (x[1] + 2 * padding - window) / stride + 1, (x[2] + 2 * padding - window) / stride + 1, out_channels};
  }
};

class Conv2d : public Op {
 public:
  struct Forward {
    const void* x = nullptr;
    const float* weight = nullptr;  // in weight_layout()
    void* y = nullptr;
    double* statistics = nullptr;  // (2, K), overwritten: sum y, sum y^2
    NormalizationForward normalization;
  };
  struct Backward {
    const void* dy = nullptr;
    const void* x = nullptr;  // as in forward
    const float* weight = nullptr;
    float* dweight = nullptr;  // in weight_layout()
    GradientMode dweight_mode = GradientMode::overwrite;
    void* dx = nullptr;  // only without normalisation; with it NormalizationBackward::dz
    GradientMode dx_mode = GradientMode::overwrite;
    NormalizationForward normalization;  // the same pointers as in forward; z holds what forward stored
    NormalizationBackward gradient;
  };
  virtual std::shared_ptr<const ParameterLayout> weight_layout() const = 0;
  virtual void forward(const Forward& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void backward(const Backward& args, const OpMemory& memory, Stream& stream) = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// Pooling. Max ignores padding; average divides by the number of real elements under the window
// (window 0: the whole image, global average pooling, y is (N, 1, 1, C)).

struct Pool2dDescription {
  enum class Kind : std::uint8_t { max, average };
  Kind kind = Kind::max;
  Shape x;  // (N, H, W, C)
  int window = 3;
  int stride = 2;
  int padding = 1;
  DType dtype = DType::fp32;    // of x, dx, z, dz
  DType y_dtype = DType::fp32;  // of y, dy: dtype, or fp32
  Layout x_layout = Layout::nhwc;
  Layout y_layout = Layout::nhwc;
  std::optional<InputNormalization> normalization{};
  bool inference = false;

  Shape y() const {
    if (window == 0) return {x[0], 1, 1, x[3]};
    return {x[0], (x[1] + 2 * padding - window) / stride + 1, (x[2] + 2 * padding - window) / stride + 1, x[3]};
  }
};

class Pool2d : public Op {
 public:
  struct Forward {
    const void* x = nullptr;
    void* y = nullptr;
    NormalizationForward normalization;
  };
  struct Backward {
    const void* dy = nullptr;
    const void* x = nullptr;
    void* dx = nullptr;  // only without normalisation
    GradientMode dx_mode = GradientMode::overwrite;
    NormalizationForward normalization;
    NormalizationBackward gradient;
  };
  virtual void forward(const Forward& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void backward(const Backward& args, const OpMemory& memory, Stream& stream) = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// Batch norm, divided so that its parts can lie in the neighbouring convolutions: the producer of x gives the sums
// (possibly all-reduced over ranks in between), `finalize` makes scale and bias, the consumer applies them.
// Formulas: Ioffe and Szegedy, "Batch Normalization", 2015, algorithm 1. Variance is biased in scale, unbiased in
// batch_statistics, as in PyTorch.

struct BatchNormDescription {
  Shape x;  // (N, H, W, C)
  DType dtype = DType::fp32;
  Layout layout = Layout::nhwc;
  double n_rows = 0;  // elements a channel that the sums are over: N*H*W, of all ranks if synchronised
  float epsilon = 1e-5f;
};

class BatchNorm : public Op {
 public:
  struct Finalize {
    const double* statistics = nullptr;    // (2, C): sum x, sum x^2
    const float* gamma = nullptr;          // (C)
    const float* beta = nullptr;           // (C)
    float* scale_bias = nullptr;           // (2, C), overwritten: gamma / stddev, beta - mean * gamma / stddev
    float* mean_inverse_stddev = nullptr;  // (2, C), overwritten
    float* batch_statistics = nullptr;     // (2, C): weight * (mean, unbiased variance); null: not wanted
    float batch_statistics_weight = 1.0f;  // 1 / (ranks * micro-batches)
    GradientMode batch_statistics_mode = GradientMode::overwrite;
  };
  struct FinalizeInference {
    const float* running_mean = nullptr;      // (C)
    const float* running_variance = nullptr;  // (C)
    const float* gamma = nullptr;
    const float* beta = nullptr;
    float* scale_bias = nullptr;  // (2, C), overwritten
  };
  struct Backward {
    const double* sums = nullptr;        // (2, C): sum dz, sum dz * x_hat over n_rows rows
    const double* local_sums = nullptr;  // the same over this rank's rows only; equal to `sums` unless synchronised
    const void* dz = nullptr;
    const void* x = nullptr;
    const float* gamma = nullptr;
    const float* mean_inverse_stddev = nullptr;  // (2, C)
    void* dx = nullptr;                          // overwritten; may be dz
    float* dgamma = nullptr;                     // from local_sums, so that the sum over ranks is the gradient
    float* dbeta = nullptr;
    GradientMode parameter_mode = GradientMode::overwrite;
  };
  virtual void finalize(const Finalize& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void finalize_inference(const FinalizeInference& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void backward(const Backward& args, const OpMemory& memory, Stream& stream) = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// Matmul with bias and activation: y (M, out) = f(z), z = x (M, in) * weight^T (in, out) + bias (out)
//   dz = f'(z) * dy;  dx = dz * weight,  dweight = dz^T * x,  dbias = sum over rows of dz

/// relu: max(z, 0). gelu: z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) (Hendrycks and Gimpel, 2016), as GPT-2's.
enum class ActivationFunction : std::uint8_t { none, relu, gelu };
constexpr std::string_view name(ActivationFunction function) {
  return function == ActivationFunction::none ? "none" : function == ActivationFunction::relu ? "relu" : "gelu";
}

struct MatmulDescription {
  std::int64_t rows = 0;  // M
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  DType dtype = DType::fp32;
  bool tf32 = false;  // fp32 may be rounded to tf32 inside the multiply
  bool bias = true;
  ActivationFunction activation = ActivationFunction::none;
  bool input_gradient = true;
  bool inference = false;
  std::shared_ptr<const ParameterLayout> weight_layout{};  // null: the op's choice; canonical (out, in)
};

class Matmul : public Op {
 public:
  struct Forward {
    const void* x = nullptr;
    const float* weight = nullptr;
    const float* bias = nullptr;
    void* y = nullptr;
  };
  struct Backward {
    const void* dy = nullptr;
    const void* x = nullptr;
    const void* y = nullptr;  // of forward, with relu; else not read
    const float* weight = nullptr;
    void* dx = nullptr;
    GradientMode dx_mode = GradientMode::overwrite;
    float* dweight = nullptr;
    float* dbias = nullptr;
    GradientMode parameter_mode = GradientMode::overwrite;
  };
  virtual std::shared_ptr<const ParameterLayout> weight_layout() const = 0;
  virtual void forward(const Forward& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void backward(const Backward& args, const OpMemory& memory, Stream& stream) = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// What changes from step to step lies in one struct in the backend's memory, never in kernel arguments,
// so that a step can be captured once.

struct StepScalars {
  float learning_rate = 0;
  double nominal_count = 1;    // of the step, if every sample is counted (LossSums): what loss_weight assumes
  float loss_weight = 0;       // 1 / nominal_count: gradients are then summed over ranks
  float clip_coefficient = 1;  // written by ClipNorm on the device, read by the optimizer; has 1 / loss scale in it
  float loss_limit = std::numeric_limits<float>::infinity();  // a mean loss above it is a spike: the step is skipped
  std::uint32_t is_applied = 1;  // 0: the step is skipped; written by ClipNorm on the device, obeyed by what updates
  float adam_correction1 = 1;    // 1 / (1 - beta1^t)
  float adam_correction2 = 1;    // 1 / (1 - beta2^t)
  std::uint32_t epoch = 0;
  std::uint32_t step = 0;
};

/// What a step tells, summed over ranks by the trainer. In exchange memory (communicator.h).
struct LossSums {
  double loss = 0;     // sum over samples, not weighted
  double correct = 0;  // samples whose greatest logit is the label's; the first of equals
  double count = 0;    // samples that were counted (label >= 0)
};

// Softmax cross entropy with label smoothing e over K classes:
//   loss_n = -sum_k q_k log softmax(logits_n)_k,  q_k = (1-e) [k == label] + e / K
// A negative label is not counted and gives no gradient. dlogits = loss_scale * loss_weight * (softmax - q).
struct SoftmaxCrossEntropyDescription {
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  float label_smoothing = 0;
  DType dtype = DType::fp32;
  bool inference = false;
};

class SoftmaxCrossEntropy : public Op {
 public:
  struct Forward {
    const void* logits = nullptr;          // (rows, classes)
    const std::int32_t* labels = nullptr;  // (rows)
    LossSums* sums = nullptr;
    GradientMode sums_mode = GradientMode::overwrite;
  };
  struct Backward {
    const void* logits = nullptr;
    const std::int32_t* labels = nullptr;
    const StepScalars* scalars = nullptr;
    const LossScale* loss_scale = nullptr;  // null: 1
    void* dlogits = nullptr;                // overwritten
  };
  virtual void forward(const Forward& args, const OpMemory& memory, Stream& stream) = 0;
  virtual void backward(const Backward& args, const OpMemory& memory, Stream& stream) = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// uint8 images to the network's input: random crop from a zero-padded image (the padding is zero after
// normalisation, as in torchvision's order ToTensor, Normalize applied to padded bytes of value 0: the
// padded pixels are (0 - mean) / std), horizontal flip, (x / 255 - mean) / std. Each draw is
// Philox(seed, crop or flip, sample, epoch): block 0 gives row (number 0), column (number 1) in [0, 2*pad], flip =
// lowest bit.

struct ImageInputDescription {
  Shape x;  // (N, H, W, C) uint8 in, the same in dtype out
  DType dtype = DType::fp32;
  std::vector<float> mean{};    // (C), of values in [0, 1]
  std::vector<float> stddev{};  // (C)
  int crop_padding = 0;         // 0: no crop
  bool flip = false;
  std::uint32_t seed = 0;
};

class ImageInput : public Op {
 public:
  struct Forward {
    const std::uint8_t* images = nullptr;       // (N, H, W, C)
    const std::uint32_t* sample_ids = nullptr;  // (N), position in the file
    const StepScalars* scalars = nullptr;       // epoch
    void* y = nullptr;                          // (N, H, W, C)
  };
  virtual void forward(const Forward& args, const OpMemory& memory, Stream& stream) = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// Over whole arenas, in one launch each

/// A parameter's place in the parameter, gradient and state arenas.
struct ParameterSegment {
  std::size_t begin = 0;  // elements
  std::size_t n_elements = 0;
  bool decay = true;  // weight decay applies, and the trust ratio of LARS
};

// SGD as in PyTorch: g += decay*w; v = momentum*v + g (first step: v = g); g = nesterov ? g + momentum*v : v; w -= lr*g
// AdamW as in PyTorch (decoupled decay): w *= 1 - lr*decay; m, v moments; w -= lr * m*c1 / (sqrt(v*c2) + epsilon)
// LARS (You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017, algorithm 1): SGD, its
//     g + decay*w times the trust ratio  trust_coefficient * |w| / (|g| + decay*|w| + epsilon)
// of each segment that decays, Euclidean norms, g clipped; ratio 1 where |w| or |g| is 0. As in PyTorch's
// implementations the learning rate stays outside of the momentum; the paper has it inside, which differs where it
// changes. Norms are in fp64, in a fixed order.
struct OptimizerDescription {
  enum class Kind : std::uint8_t { sgd, adamw, lars };
  Kind kind = Kind::sgd;
  float momentum = 0;
  bool nesterov = false;
  float weight_decay = 0;
  double beta1 = 0.9;  // double, since AdamW takes 1 - beta
  double beta2 = 0.999;
  float epsilon = 1e-8f;
  float trust_coefficient = 0.001f;
  std::vector<ParameterSegment> segments{};
  std::size_t n_elements = 0;  // of the parameter arena

  /// fp32 values an element of the parameter arena: 0, 1 (momentum) or 2 (moments), one after the other.
  int n_states() const { return kind == Kind::adamw ? 2 : (momentum != 0.0f ? 1 : 0); }
};

// A skipped step (scalars->is_applied 0) leaves parameters and state as they are; the next step's correction counts it.
class Optimizer : public Op {
 public:
  struct Apply {
    float* parameters = nullptr;
    const float* gradients = nullptr;
    float* state = nullptr;  // zero before step 0; (n_states, n_elements)
    const StepScalars* scalars = nullptr;
  };
  virtual void apply(const Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

// Global norm of the gradients and the clipping coefficient min(1, max_norm / (norm + 1e-6)), as in PyTorch.
// The norm is over segments in order, each summed in fp64 in a fixed order. max_norm 0: coefficient 1.
// Decides on the device whether the step is applied: norm and mean loss are finite, the loss at most the limit.
//
// The loss is a mean over the samples that the step counts on all ranks, and their number is known only now. Gradients
// come with the weight 1 / nominal_count. The norm and the coefficient are multiplied by nominal_count / count, which
// is exactly 1 if every sample is counted. A step that counts nothing has no mean loss and is not applied.
//
// With a loss scale: the norm is that of gradients / scale, the coefficient is divided by the scale, so that gradients
// times it are what they are without, and the scale becomes that of the next step (loss_scale.h).
struct ClipNormDescription {
  std::vector<ParameterSegment> segments{};
  float max_norm = 0;
  LossScaling loss_scaling{};  // for Apply::loss_scale
};

class ClipNorm : public Op {
 public:
  struct Apply {
    const float* gradients = nullptr;
    const LossSums* sums = nullptr;   // of the step
    StepScalars* scalars = nullptr;   // clip_coefficient and is_applied are written
    LossScale* loss_scale = nullptr;  // that of the gradients on entry, of the next step's on return; null: 1
    double* norm = nullptr;           // written
  };
  virtual void apply(const Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

// One leaf of a sum by a binary tree: target = open[0] + (open[1] + ... (open[n-1] + value)), elementwise, each
// addition rounded once. `open` are sums of subtrees that wait for their other half, the outermost first; none: a copy.
struct OrderedSumDescription {
  DType dtype = DType::fp32;  // fp32 or fp64
};

class OrderedSum : public Op {
 public:
  struct Apply {
    const void* value = nullptr;
    std::span<const void* const> open{};
    void* target = nullptr;  // may be `value` or one of `open`
    std::size_t begin = 0;   // elements [begin, begin + n_elements) of each
    std::size_t n_elements = 0;
  };
  virtual void apply(const Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

// target = source, elementwise, rounded to nearest, ties to even: fp32 to bf16 or fp16, or back.
struct CastDescription {
  DType from = DType::fp32;
  DType to = DType::bf16;
};

class Cast : public Op {
 public:
  struct Apply {
    const void* source = nullptr;
    void* target = nullptr;  // does not overlap
    std::size_t n_elements = 0;
  };
  virtual void apply(const Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

// running += momentum * (batch - running), elementwise: running statistics, once a step that is applied.
struct MovingAverageDescription {
  std::size_t n_elements = 0;
  float momentum = 0.1f;
};

class MovingAverage : public Op {
 public:
  struct Apply {
    float* running = nullptr;
    const float* batch = nullptr;
    const StepScalars* scalars = nullptr;  // is_applied
  };
  virtual void apply(const Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

// 64-bit hash of memory, to compare replicas: equal bytes give equal hashes on one backend. Two backends may hash
// differently (cpu: xxh3; cuda: kernels/cuda/hash.cu), since the hash of a file is taken on the host.
struct HashDescription {
  std::size_t size_bytes = 0;
};

class Hash : public Op {
 public:
  struct Apply {
    const void* data = nullptr;
    std::uint64_t* hash = nullptr;  // written
  };
  virtual void apply(const Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

}  // namespace lockstep
