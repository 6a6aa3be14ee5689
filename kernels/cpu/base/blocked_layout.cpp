#include "kernels/cpu/base/blocked_layout.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>

#include "kernels/cpu/base/bf16.h"

namespace lockstep::cpu {
namespace {

std::int64_t product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

Sizes row_major_strides(const Sizes& sizes) {
  Sizes strides(sizes.size(), 1);
  for (std::size_t d = sizes.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * sizes[d + 1];
  return strides;
}

template <typename To, typename From>
To converted(From value) {
  if constexpr (std::is_same_v<From, To>)
    return value;
  else
    return from_float<To>(to_float(value));
}

template <typename From, typename To>
void copy_neighbours(const From* from, To* to, std::int64_t n_elements) {
  constexpr std::int64_t kAtOnce = 8;  // the compiler makes vector instructions of a constant number
  std::int64_t i = 0;
  for (; i + kAtOnce <= n_elements; i += kAtOnce)
    for (std::int64_t j = i; j < i + kAtOnce; ++j) to[j] = converted<To>(from[j]);
  for (; i < n_elements; ++i) to[i] = converted<To>(from[i]);
}

}  // namespace

BlockedLayout::BlockedLayout(Sizes sizes, Sizes strides, std::vector<Block> blocks)
    : sizes_(std::move(sizes)), strides_(std::move(strides)), blocks_(std::move(blocks)) {}

BlockedLayout::BlockedLayout(Sizes sizes, std::string_view notation) : sizes_(std::move(sizes)) {
  std::vector<std::size_t> order;
  std::int64_t size = 0;  // of a block; its dimension follows
  for (const char c : notation) {
    if (c >= '0' && c <= '9') {
      size = size * 10 + (c - '0');
    } else if (size > 0) {
      blocks_.push_back({.size = size, .dimension = c - 'a'});
      size = 0;
    } else {
      order.push_back(static_cast<std::size_t>(c >= 'a' ? c - 'a' : c - 'A'));
    }
  }
  require(order.size() == sizes_.size(), ErrorCode::internal, "the layout {} is not one of {} dimensions", notation,
          sizes_.size());
  strides_.resize(sizes_.size());
  std::int64_t stride = 1;
  for (const Block& block : blocks_) stride *= block.size;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides_[*d] = stride;
    stride *= (sizes_[*d] + block_size(*d) - 1) / block_size(*d);
  }
}

BlockedLayout BlockedLayout::row_major(const Sizes& sizes) { return {sizes, row_major_strides(sizes), {}}; }

std::int64_t BlockedLayout::block_size(std::size_t d) const {
  std::int64_t size = 1;
  for (const Block& block : blocks_)
    if (block.dimension == static_cast<int>(d)) size *= block.size;
  return size;
}

bool BlockedLayout::operator==(const BlockedLayout& other) const {
  if (sizes_ != other.sizes_ || blocks_ != other.blocks_) return false;
  for (std::size_t d = 0; d < sizes_.size(); ++d)
    if (sizes_[d] > block_size(d) && strides_[d] != other.strides_[d]) return false;
  return true;
}

std::int64_t BlockedLayout::count() const { return product(sizes_); }

std::size_t BlockedLayout::n_elements() const {
  std::int64_t n = 1;
  for (std::size_t d = 0; d < sizes_.size(); ++d) {
    const std::int64_t block = block_size(d);
    n *= (sizes_[d] + block - 1) / block * block;
  }
  return static_cast<std::size_t>(n);
}

std::vector<std::int64_t> BlockedLayout::offsets(std::size_t d) const {
  const std::int64_t all = block_size(d);
  std::vector<std::int64_t> offsets;
  for (std::int64_t i = 0; i < sizes_[d]; ++i) {
    std::int64_t offset = i / all * strides_[d], place = i % all;
    std::int64_t stride = 1;  // of the current block, from the innermost outwards
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      if (block->dimension == static_cast<int>(d)) {
        offset += place % block->size * stride;
        place /= block->size;
      }
      stride *= block->size;
    }
    offsets.push_back(offset);
  }
  return offsets;
}

void BlockedLayout::pack(std::span<const float> canonical, float* parameter) const {
  require(static_cast<std::int64_t>(canonical.size()) == count(), ErrorCode::internal,
          "a parameter of sizes {} cannot be packed from {} elements", sizes_text(sizes_), canonical.size());
  if (padded()) std::memset(parameter, 0, n_elements() * sizeof(float));
  const LayoutCopy copy(row_major(sizes_), *this);
  const int parts = part_count({.threads = omp_get_max_threads()}, static_cast<std::int64_t>(canonical.size_bytes()));
  run_parts(parts, [&](int part) { copy.run(canonical.data(), parameter, part, parts); });
}

void BlockedLayout::unpack(const float* parameter, std::span<float> canonical) const {
  require(static_cast<std::int64_t>(canonical.size()) == count(), ErrorCode::internal,
          "a parameter of sizes {} cannot be unpacked into {} elements", sizes_text(sizes_), canonical.size());
  LayoutCopy(*this, row_major(sizes_)).run(parameter, canonical.data());
}

std::string BlockedLayout::describe() const {
  std::vector<std::size_t> order(sizes_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return strides_[a] > strides_[b]; });
  std::string text;
  for (const std::size_t d : order) text += static_cast<char>((block_size(d) > 1 ? 'A' : 'a') + static_cast<int>(d));
  for (const Block& block : blocks_) text += fmt::format("{}{}", block.size, static_cast<char>('a' + block.dimension));
  return text + (padded() ? " padded" : "");
}

LayoutCopy::LayoutCopy(const BlockedLayout& from, const BlockedLayout& to) {
  require(from.sizes() == to.sizes(), ErrorCode::internal, "a tensor of sizes {} cannot be copied to one of sizes {}",
          sizes_text(from.sizes()), sizes_text(to.sizes()));
  dimensions_.push_back({.from = {0}, .to = {0}});  // of a tensor with one dimension, the rows
  for (std::size_t d = 0; d < to.sizes().size(); ++d)
    dimensions_.push_back({.from = from.offsets(d), .to = to.offsets(d)});
  const auto step = [](const Dimension& d) {
    return d.size() > 1 ? d.to[1] - d.to[0] : std::numeric_limits<std::int64_t>::max();
  };
  std::ranges::stable_sort(dimensions_, std::greater{}, step);
  const Dimension& inner = dimensions_.back();
  for (std::size_t d = 0; d + 1 < dimensions_.size(); ++d) n_rows_ *= dimensions_[d].size();

  for (std::int64_t i = 0; i < inner.size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool continues = i > 0 && inner.from[at] == inner.from[at - 1] + 1 && inner.to[at] == inner.to[at - 1] + 1;
    if (!continues) ranges_.push_back({.begin = i, .end = i});
    ranges_.back().end = i + 1;
  }
  constexpr std::int64_t kShortestRange = 4;  // on average
  has_neighbours_ = inner.size() >= kShortestRange * std::ssize(ranges_);
  if (!has_neighbours_) ranges_ = {{.begin = 0, .end = inner.size()}};
}

template <typename From, typename To>
void LayoutCopy::run(const From* from, To* to, int part, int parts) const {
  const Dimension &inner = dimensions_.back(), &middle = dimensions_[dimensions_.size() - 2];
  // With the ranges as the outermost loop and `middle` as the innermost one, most copies begin where the one before
  // ended.
  const Range units = part_of(std::ssize(ranges_) * n_rows_, part, parts);
  for (std::int64_t unit = units.begin; unit < units.end;) {
    const Range range = ranges_[static_cast<std::size_t>(unit / n_rows_)];
    std::int64_t from_offset = 0, to_offset = 0, rest = unit % n_rows_ / middle.size();
    for (std::size_t d = dimensions_.size() - 2; d-- > 0;) {
      const auto i = static_cast<std::size_t>(rest % dimensions_[d].size());
      from_offset += dimensions_[d].from[i];
      to_offset += dimensions_[d].to[i];
      rest /= dimensions_[d].size();
    }
    const std::int64_t first = unit % middle.size(), last = std::min(middle.size(), first + units.end - unit);
    unit += last - first;
    for (auto m = static_cast<std::size_t>(first); m < static_cast<std::size_t>(last); ++m) {
      const From* const source = from + from_offset + middle.from[m];
      To* const target = to + to_offset + middle.to[m];
      const auto begin = static_cast<std::size_t>(range.begin);
      if (has_neighbours_)
        copy_neighbours(source + inner.from[begin], target + inner.to[begin], range.end - range.begin);
      else
        for (std::size_t i = 0; i < inner.to.size(); ++i) target[inner.to[i]] = converted<To>(source[inner.from[i]]);
    }
  }
}
template void LayoutCopy::run(const float*, float*, int, int) const;
template void LayoutCopy::run(const float*, Bf16*, int, int) const;
template void LayoutCopy::run(const Bf16*, float*, int, int) const;
template void LayoutCopy::run(const Bf16*, Bf16*, int, int) const;

std::shared_ptr<const BlockedLayout> as_blocked_layout(const std::shared_ptr<const ParameterLayout>& given,
                                                       const Sizes& sizes) {
  if (!given) return nullptr;
  auto layout = std::dynamic_pointer_cast<const BlockedLayout>(given);
  require(layout != nullptr, ErrorCode::op_description,
          "weight_layout was made by another backend ({}); pass the weight_layout() of an op of the cpu backend",
          given->describe());
  require(layout->sizes() == sizes, ErrorCode::op_description,
          "weight_layout is for a parameter of sizes {}, but the op's weights have sizes {}",
          sizes_text(layout->sizes()), sizes_text(sizes));
  return layout;
}

std::shared_ptr<const BlockedLayout> canonical_layout(const std::shared_ptr<const ParameterLayout>& given,
                                                      const Sizes& sizes) {
  const std::shared_ptr<const BlockedLayout> layout = as_blocked_layout(given, sizes);
  if (!layout) return std::make_shared<BlockedLayout>(BlockedLayout::row_major(sizes));
  require(*layout == BlockedLayout::row_major(sizes), ErrorCode::op_description,
          "a weight of sizes {} that is read row by row has the layout {}; it must be canonical", sizes_text(sizes),
          layout->describe());
  return layout;
}

std::string sizes_text(const Sizes& sizes) {
  std::string text = "(";
  for (std::size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

}  // namespace lockstep::cpu
