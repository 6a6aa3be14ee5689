#include "checkpoint/tensor_stream.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>

#include "base/numbers.h"
#include "base/outcome.h"
#include "base/progress_bar.h"
#include "base/signals.h"
#include "checkpoint/model_file.h"
#include "lockstep/log.h"

namespace lockstep::checkpoint {
namespace {

// Small enough for Ctrl-C to take effect at once on a slow disk, and for /dev/shm. Large enough for the ranks'
// agreement on each part (about a millisecond) not to count.
constexpr std::size_t kPartElements = std::size_t{8} << 20;

/// What is read before the ranks agree again: as many pieces as fit.
struct Part {
  struct Piece {
    std::size_t tensor = 0, first = 0, n = 0, at = 0;  // at: where the part has it
  };
  std::vector<Piece> pieces;
  std::size_t n = 0;
  std::int64_t size_bytes = 0;  // in the file
};

std::vector<Part> cut(const std::vector<NamedTensor>& tensors) {
  std::vector<Part> parts(1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t first = 0, n = 0; first < tensors[i].n_elements(); first += n) {
      if (parts.back().n == kPartElements) parts.emplace_back();
      Part& part = parts.back();
      n = std::min(kPartElements - part.n, tensors[i].n_elements() - first);
      part.pieces.push_back({.tensor = i, .first = first, .n = n, .at = part.n});
      part.n += n;
      part.size_bytes += static_cast<std::int64_t>(n * size_bytes(tensors[i].dtype));
    }
  }
  return parts;
}

}  // namespace

void stream_tensors(const std::string& path, std::vector<NamedTensor> tensors, World& world,
                    const std::function<void(const TensorPiece&)>& take) {
  check_while_read(path, tensors);
  const std::vector<Part> parts = cut(tensors);
  const std::size_t largest = std::ranges::max_element(parts, {}, &Part::n)->n;
  const std::unique_ptr<Memory> shared =
      world.share_in_node(2 * std::max<std::size_t>(largest, 1) * sizeof(float), "reading " + path);
  const auto half = [&](std::size_t part) { return static_cast<float*>(shared->data()) + (part % 2) * largest; };
  const auto read = [&](std::size_t i) {
    for (const Part::Piece& piece : parts[i].pieces)
      tensors[piece.tensor].read(piece.first, {half(i) + piece.at, piece.n});
  };
  const bool is_reader = world.local_rank() == 0;
  std::future<void> pending;
  const auto start = [&](std::size_t i) {
    if (!is_reader || i == parts.size()) return;
    const SignalsBlocked blocked;
    pending = std::async(std::launch::async, read, i);
  };

  std::int64_t done_bytes = 0, total_bytes = 0;
  for (const Part& part : parts) total_bytes += part.size_bytes;
  const bool is_shown = world.rank() == 0 && total_bytes >= kShownFromBytes;
  const auto begin = std::chrono::steady_clock::now();
  ProgressBar bar("reading " + std::filesystem::path(path).filename().string(), total_bytes, is_shown,
                  WithoutTerminal::lines);
  bar.update(0, "");
  std::exception_ptr failure;  // of take(); the ranks agree on it before the next part is used
  start(0);
  for (std::size_t i = 0; i <= parts.size(); ++i) {
    all_agree(world, [&] {
      if (pending.valid()) pending.get();
      if (failure) std::rethrow_exception(failure);
    });
    stop_if_requested(world);
    if (i == parts.size()) break;
    start(i + 1);  // into the half whose values all ranks have used
    try {
      for (const Part::Piece& piece : parts[i].pieces)
        take({.tensor = piece.tensor, .first = piece.first, .values = {half(i) + piece.at, piece.n}});
    } catch (...) {
      failure = std::current_exception();
    }
    done_bytes += parts[i].size_bytes;
    bar.update(done_bytes, "");
  }
  if (!is_shown) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  log::info("read {} of {} in {:.1f} s ({}/s)", size_text(static_cast<std::uint64_t>(total_bytes)), path, seconds,
            size_text(static_cast<std::uint64_t>(static_cast<double>(total_bytes) / seconds)));
}

}  // namespace lockstep::checkpoint
