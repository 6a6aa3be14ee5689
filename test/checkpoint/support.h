// Helpers of the checkpoint tests: a scratch directory, a world whose ranks are threads, and a small model's tensors.
#pragma once

#include <barrier>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint::test {

class ScratchDirectory {
 public:
  ScratchDirectory() {
    const char* parent = std::getenv("TMPDIR");
    std::string name = std::string(parent != nullptr ? parent : "/tmp") + "/checkpoint_test_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::size_t n_entries() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::string path_;
};

/// The state that the ranks of a ThreadWorld share.
struct Meeting {
  explicit Meeting(int size) : slots(static_cast<std::size_t>(size)), gate(size) {}
  std::vector<std::string> slots;
  std::barrier<> gate;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_->slots.size()); }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size(); }
  int node() const override { return 0; }
  int n_nodes() const override { return 1; }
  const std::string& host() const override { return host_; }
  void barrier() override { meeting_->gate.arrive_and_wait(); }
  void broadcast(std::span<std::byte> data, int root) override {
    const auto all = all_gather({reinterpret_cast<const char*>(data.data()), data.size()});
    std::memcpy(data.data(), all[static_cast<std::size_t>(root)].data(), data.size());
  }
  std::vector<std::string> all_gather(std::string_view mine) override {
    meeting_->slots[static_cast<std::size_t>(rank_)] = mine;
    barrier();
    auto all = meeting_->slots;
    barrier();
    return all;
  }
  bool any(bool mine) override {
    for (const std::string& text : all_gather(mine ? "1" : "0"))
      if (text == "1") return true;
    return false;
  }
  std::unique_ptr<Memory> share_in_node(std::size_t size_bytes, const std::string&) override {
    auto mine = std::make_unique<Shared>();
    if (rank_ == 0) mine->bytes = std::make_shared<std::vector<std::byte>>(size_bytes);
    const Shared* const address = mine.get();
    const std::string of_first = all_gather({reinterpret_cast<const char*>(&address), sizeof address})[0];
    const Shared* first = nullptr;
    std::memcpy(&first, of_first.data(), sizeof first);
    mine->bytes = first->bytes;
    barrier();
    return mine;
  }
  bool is_first_to_report() override { return rank_ == 0; }
  [[noreturn]] void abort(int) override { std::abort(); }

 private:
  struct Shared final : Memory {
    void* data() const override { return bytes->data(); }
    std::size_t size_bytes() const override { return bytes->size(); }
    std::shared_ptr<std::vector<std::byte>> bytes;
  };
  std::shared_ptr<Meeting> meeting_;
  int rank_ = 0;
  std::string host_ = "node0";
};

/// Runs `work(world)` on `size` ranks and returns each rank's Error text, which is empty if it succeeded.
template <typename Work>
std::vector<std::string> on_ranks(int size, Work work) {
  auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      ThreadWorld world(meeting, rank);
      try {
        work(world);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  ranks.clear();
  return errors;
}

/// Value i of a tensor depends on its name, so that a value in the wrong place is detected.
inline float value_of(const std::string& path, std::int64_t i) {
  const auto seed = static_cast<std::int64_t>(std::hash<std::string>{}(path) % 1000);
  return static_cast<float>(seed) + static_cast<float>(i % 9973) * 0.001f;
}

inline TensorSource source(const std::string& path, const Shape& shape) {
  return {path, shape, [path](std::span<float> out) {
            for (std::size_t i = 0; i < out.size(); ++i) out[i] = value_of(path, static_cast<std::int64_t>(i));
          }};
}

/// Tensors not in the order of their names. With `large`, one of them spans several 16 MiB blocks.
inline std::vector<TensorSource> small_model(bool large = false) {
  std::vector<TensorSource> tensors = {source("/parameters/layer1.0.conv1.weight", {64, 3, 3, 3}),
                                       source("/parameters/bn1.weight", {64}),
                                       source("/statistics/bn1.running_mean", {64}),
                                       source("/statistics/bn1.running_var", {64}),
                                       source("/optimizer/momentum/layer1.0.conv1.weight", {64, 3, 3, 3}),
                                       source("/parameters/scale", {}),
                                       source("/parameters/fc.weight", {10, 513}),
                                       source("/parameters/fc.bias", {10})};
  if (large) tensors.push_back(source("/parameters/embedding", {1300, 7001}));  // 36 MB
  return tensors;
}

inline StateJson small_state(std::int64_t step = 1200) {
  return {{"model", {{"family", "resnet"}, {"depth", 18}, {"stem", "cifar"}, {"classes", 10}}},
          {"precision", "fp32"},
          {"step", step},
          {"epoch", 3},
          {"seed", 1}};
}

inline void save_alone(const std::string& path, const std::vector<TensorSource>& tensors, const StateJson& state) {
  ThreadWorld world(std::make_shared<Meeting>(1), 0);
  save(path, tensors, state, world);
}

inline std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The text of the Error that `work` throws; empty if it throws none.
template <typename Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace lockstep::checkpoint::test
