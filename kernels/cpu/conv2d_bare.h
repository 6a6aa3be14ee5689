// A bare convolution, without the passes that conv2d.cpp adds: three directions, in the caller's layouts. There are
// several algorithms for each, in files of their own, between which conv2d_algorithms.cpp chooses.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/cpu/base/blocked_layout.h"
#include "kernels/cpu/base/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/error.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {

enum class Direction { forward, data_gradient, weight_gradient };
const char* name(Direction direction);

/// Throws Error if the description is impossible.
void check(const Conv2dDescription& description);

/// Planned for one direction; the call for another must not be made. Both gradients use the weight layout of forward:
/// Conv2dDescription::weight_layout. Weights have the type of x and y, and their gradient is fp32.
class BareConvolution {
 public:
  virtual ~BareConvolution() = default;
  virtual std::shared_ptr<const BlockedLayout> weight_layout() const = 0;
  /// Bytes of workspace of a call; 64-byte aligned.
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::string describe() const = 0;

  /// Forward, y from x, or the data gradient, dx from dy; overwritten.
  virtual void run(const void* from, const void* weight, void* to, void* workspace) = 0;
  /// dweight, overwritten or added to; zeros where the layout has padding.
  virtual void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) = 0;
};

/// Plans the algorithm that `algorithms` has stored or finds to be the fastest; or if it is null, the first that fits.
std::unique_ptr<BareConvolution> make_bare_convolution(const Conv2dDescription& d, Direction direction,
                                                       const CpuContext& context, Algorithms* algorithms);

/// The layout of activations between convolutions: blocks of 16 channels are one AVX-512 register (measured in
/// conv2d_onednn.cpp); in bf16 all fast kernels need nhwc. With `algorithms`, fp32 is timed for any batch.
Layout choose_activation_layout(const Shape& shape, DType dtype, const CpuContext& context, Algorithms* algorithms);

// ---- The algorithms: whether one supports a convolution here, and how it is planned ---------------------------------

using MakeConvolution = std::unique_ptr<BareConvolution> (*)(const Conv2dDescription&, Direction, const CpuContext&);

/// In builds with oneDNN.
std::unique_ptr<BareConvolution> make_onednn_convolution(const Conv2dDescription& d, Direction direction,
                                                         const CpuContext& context);
/// Whether oneDNN computes convolutions of activations in blocks of 16 channels, which are one AVX-512 register.
bool has_convolutions_in_blocks();

/// bf16 in nhwc, channels in multiples of 32, an odd window with padding window/2, stride 1 or 2, weights in the layout
/// of the kernels, on a processor with AMX.
bool amx_convolution_fits(const Conv2dDescription& d, Direction direction);
std::unique_ptr<BareConvolution> make_amx_convolution(const Conv2dDescription& d, Direction direction,
                                                      const CpuContext& context);

/// A window of 3, stride 1, padding 1, and channels in multiples of 32.
bool winograd_fits(const Conv2dDescription& d, Direction direction);
std::unique_ptr<BareConvolution> make_winograd_convolution(const Conv2dDescription& d, Direction direction,
                                                           const CpuContext& context);

/// x and y in nhwc, or without oneDNN in any layout, in a type that products take (product_type). Weights can have any
/// layout of this backend; if it is not that of the matrices, forward and data gradient copy them. If the description
/// has no weight layout, it is (R, S, C, K).
bool matmul_convolution_fits(const Conv2dDescription& d, Direction direction);
std::unique_ptr<BareConvolution> make_matmul_convolution(const Conv2dDescription& d, Direction direction,
                                                         const CpuContext& context);

/// Whether this kernel supports the weight gradient: tensors and weights are in blocks of 16 channels. oneDNN computes
/// larger images.
bool weight_gradient_fits(const Conv2dDescription& d, Direction direction);

/// The layout that the kernel needs: (K/16, C/16, R, S, 16 c, 16 k).
std::shared_ptr<const BlockedLayout> weight_gradient_layout(const Conv2dDescription& d);

/// Whether this kernel is the faster one: at most 64 pixels of output. Measured, batch 32, 1 thread, Sapphire Rapids,
/// the kernel of oneDNN 3.2 against this one: 4x4x512 21.9 and 12.9 ms, 8x8x256 to 512 with stride 2 14.4 and 8.7 ms,
/// 8x8x256 16.0 and 13.9 ms; 16x16x128 14.2 and 15.3 ms. At the multiply rate, without the taps that fall on the
/// padding: 9.9, 6.0, 11.9 and 13.1 ms.
bool weight_gradient_pays(const Conv2dDescription& d);

/// dweight (K/16, C/16, R, S, 16 c, 16 k), overwritten or added to, from x and dy in nchw16c:
///   dweight[k,c,r,s] = sum_{n,h,w} dy[n,h,w,k] x[n, h*stride+r-pad, w*stride+s-pad, c]
/// Each sum runs over images, rows and columns in that order, whatever the number of threads.
std::unique_ptr<BareConvolution> make_weight_gradient(const Conv2dDescription& d, Direction direction,
                                                      const CpuContext& context);

/// The same convolution in fp32 and in the layouts that are best for it: in blocks of 16 channels, or nhwc where the
/// processor or the channels do not fit or `needs_nhwc`. It has no weight layout.
Conv2dDescription widened(const Conv2dDescription& d, bool needs_nhwc);

/// `d` is in bf16 and nhwc, and `fp32` is widened(d). If `fp32` has a weight layout, `make` needs that layout;
/// otherwise any will do. If `d` has no weight layout, that of the fp32 algorithm is used.
std::unique_ptr<BareConvolution> make_widened_convolution(const Conv2dDescription& d, const Conv2dDescription& fp32,
                                                          Direction direction, const CpuContext& context,
                                                          MakeConvolution make);

}  // namespace lockstep::cpu
