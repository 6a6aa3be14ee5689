// The layout of a parameter in memory: its dimensions in some order, some of them split into blocks. All parameters of
// this backend have such a layout, including those in oneDNN's formats. They are named in oneDNN's notation, from the
// outermost dimension to the innermost: "abcd" is row-major, "cdba" of (K, C, R, S) is (R, S, C, K), and "ABcd16b16a"
// is (K/16, C/16, R, S, 16 c, 16 k), where the last blocks are padded with zeros.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/base/parallel.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

using Sizes = std::vector<std::int64_t>;  // of a tensor's dimensions

class BlockedLayout final : public ParameterLayout {
 public:
  struct Block {
    std::int64_t size = 1;
    int dimension = 0;
    bool operator==(const Block&) const = default;
  };

  BlockedLayout(Sizes sizes, std::string_view notation);
  /// `strides`: in elements, from one block of a dimension to the next. `blocks`: from the outermost to the innermost.
  BlockedLayout(Sizes sizes, Sizes strides, std::vector<Block> blocks);
  static BlockedLayout row_major(const Sizes& sizes);

  std::size_t n_elements() const override;
  void pack(std::span<const float> canonical, float* parameter) const override;
  void unpack(const float* parameter, std::span<float> canonical) const override;
  std::string describe() const override;

  const Sizes& sizes() const { return sizes_; }
  const Sizes& strides() const { return strides_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  /// Elements without padding.
  std::int64_t count() const;
  /// Whether some of the elements are padding, which is zero.
  bool padded() const { return static_cast<std::int64_t>(n_elements()) != count(); }
  /// The place of an element is the sum of one offset per dimension. Returns the offsets of all indices of dimension d.
  std::vector<std::int64_t> offsets(std::size_t d) const;
  /// Whether all elements have the same places in both layouts.
  bool operator==(const BlockedLayout& other) const;

 private:
  std::int64_t block_size(std::size_t d) const;

  Sizes sizes_, strides_;
  std::vector<Block> blocks_;
};

/// Copies a tensor from one layout to another, and converts its elements to the type of the target. Padding of the
/// target is not written. Planned once; a run can be divided into parts.
class LayoutCopy {
 public:
  LayoutCopy() = default;
  LayoutCopy(const BlockedLayout& from, const BlockedLayout& to);
  template <typename From, typename To>
  void run(const From* from, To* to, int part = 0, int parts = 1) const;

 private:
  struct Dimension {
    std::vector<std::int64_t> from, to;  // offsets
    std::int64_t size() const { return std::ssize(to); }
  };

  std::vector<Dimension> dimensions_;  // at least two, the innermost of the target last
  std::int64_t n_rows_ = 1;            // the product of all sizes but the last
  // The indices of the last dimension: ranges whose elements are neighbours in both layouts, or one range of all.
  std::vector<Range> ranges_;
  bool has_neighbours_ = false;
};

/// `given` as this backend's layout of a parameter of these sizes; null stays null.
std::shared_ptr<const BlockedLayout> as_blocked_layout(const std::shared_ptr<const ParameterLayout>& given,
                                                       const Sizes& sizes);

/// The canonical layout of a parameter of these sizes, for ops that address its rows. Throws op_description if `given`
/// is another one; null: a new one.
std::shared_ptr<const BlockedLayout> canonical_layout(const std::shared_ptr<const ParameterLayout>& given,
                                                      const Sizes& sizes);

/// "(64, 32, 3, 3)"
std::string sizes_text(const Sizes& sizes);

}  // namespace lockstep::cpu
