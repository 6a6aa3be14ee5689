// Products of matrices, and copies from one layout to another, as the ops plan and run them. oneDNN computes them
// (product_onednn.cpp). A build without it (`make DNNL=0`) has Lockstep's own kernels instead (own_product.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cpu/base/blocked_layout.h"
#include "kernels/cpu/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/error.h"

namespace lockstep::cpu {

/// Whether this build has oneDNN.
#ifdef LOCKSTEP_DNNL
inline constexpr bool kHasOnednn = true;
#else
inline constexpr bool kHasOnednn = false;
#endif

/// A row-major matrix of fp32 or bf16, or the transpose of one.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::fp32;
  bool is_transposed = false;   // (columns, rows) in memory
  std::int64_t row_stride = 0;  // of c: elements from one row to the next; 0: its columns
  std::int64_t stride() const { return row_stride > 0 ? row_stride : columns; }
};

/// c (M, N) = a (M, L) * b (L, N) + bias (N), or c += a * b + bias. Sums are fp32. a and b have one type; the bias has
/// that of c.
struct ProductDescription {
  Matrix a, b, c;  // c is not transposed
  bool has_bias = false;
  bool adds = false;  // to the previous contents of c
};

class Product {
 public:
  struct Arguments {
    const void *a = nullptr, *b = nullptr, *bias = nullptr;
    void* c = nullptr;
    void* workspace = nullptr;
  };
  virtual ~Product() = default;
  /// 64-byte aligned.
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::string describe() const = 0;
  virtual void execute(const Arguments& arguments) = 0;
};

/// Products of equal sizes that together compute some rows, or some columns, of a matrix; the last may be smaller.
class ChunkedProduct {
 public:
  ChunkedProduct() = default;
  template <typename Make>  // makes the product for a number of rows, or of columns
  ChunkedProduct(std::int64_t total, std::int64_t at_once, const Make& make)
      : total_(total), at_once_(at_once), each_(make(at_once)) {
    if (total % at_once > 0) last_ = make(total % at_once);
  }
  explicit operator bool() const { return each_ != nullptr; }
  std::int64_t at_once() const { return at_once_; }
  std::size_t workspace_bytes() const {
    return std::max(each_->workspace_bytes(), last_ ? last_->workspace_bytes() : std::size_t{0});
  }
  std::string describe() const { return each_->describe(); }
  template <typename Work>  // (range, product)
  void for_each(const Work& work) const {
    for (std::int64_t first = 0; first < total_; first += at_once_) {
      const Range range{first, std::min(first + at_once_, total_)};
      work(range, range.end - first == at_once_ ? *each_ : *last_);
    }
  }

 private:
  std::int64_t total_ = 0, at_once_ = 1;
  std::unique_ptr<Product> each_, last_;
};

/// Copies a tensor to another layout, or to another type.
class Reorder {
 public:
  virtual ~Reorder() = default;
  virtual std::size_t workspace_bytes() const = 0;
  virtual void execute(const void* from, void* to, void* workspace) = 0;
};

std::unique_ptr<Product> make_product(const ProductDescription& description, const CpuContext& context);
/// The type that matrices of `dtype` must have in products here: fp32 for bf16 if oneDNN has no instructions for bf16.
DType product_type(DType dtype);
/// Null if both sides are the same. Padding of the target is zero afterwards.
std::unique_ptr<Reorder> make_reorder(const BlockedLayout& from, DType from_type, const BlockedLayout& to,
                                      DType to_type, const CpuContext& context);

/// "oneDNN 3.2.0"; "oneDNN none" in a build without it.
std::string product_library();
/// The widest instruction set that products use here: "AVX-512 with AMX", "AVX-512 with bf16", "AVX-512" or "AVX2".
std::string product_instructions();

/// The same by Lockstep's own kernels (own_product.cpp), in every build. The sum of each element runs over blocks of
/// kOwnProductBlock of L, first within a block, whatever the number of threads and the other sizes.
inline constexpr std::int64_t kOwnProductBlock = 256;
std::unique_ptr<Product> make_own_product(const ProductDescription& description, const CpuContext& context);
std::unique_ptr<Reorder> make_own_reorder(const BlockedLayout& from, DType from_type, const BlockedLayout& to,
                                          DType to_type, const CpuContext& context);

}  // namespace lockstep::cpu
