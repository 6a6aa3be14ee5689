#include "checkpoint/named_tensor.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/signals.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {
constexpr std::size_t kPieceElements = std::size_t{4} << 20;
}

NamedTensor::NamedTensor(std::string the_name, Shape the_shape, std::vector<float> values)
    : name(std::move(the_name)), shape(the_shape) {
  require(values.size() == n_elements(), ErrorCode::internal, "{} has {} values for the shape {}", name, values.size(),
          shape.text());
  read = [kept = std::make_shared<const std::vector<float>>(std::move(values))](std::size_t first,
                                                                                std::span<float> out) {
    std::ranges::copy(std::span(*kept).subspan(first, out.size()), out.begin());
  };
}

std::vector<float> NamedTensor::values() const {
  std::vector<float> out(n_elements());
  read(0, out);
  return out;
}

NamedTensor::Read read_at_once(std::function<std::vector<float>()> read_all) {
  return [read_all = std::move(read_all), kept = std::make_shared<std::vector<float>>()](std::size_t first,
                                                                                         std::span<float> out) {
    if (kept->empty()) *kept = read_all();
    std::ranges::copy(std::span(*kept).subspan(first, out.size()), out.begin());
    if (first + out.size() == kept->size()) std::vector<float>().swap(*kept);
  };
}

void for_each_piece(const NamedTensor& tensor,
                    const std::function<void(std::size_t first, std::span<const float> values)>& take) {
  std::vector<float> piece;
  for (std::size_t first = 0; first < tensor.n_elements(); first += piece.size()) {
    throw_if_stopped();
    piece.resize(std::min(kPieceElements, tensor.n_elements() - first));
    tensor.read(first, piece);
    take(first, piece);
  }
}

void read_through(const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& tensor : tensors) for_each_piece(tensor, [](std::size_t, std::span<const float>) {});
}

}  // namespace lockstep::checkpoint
