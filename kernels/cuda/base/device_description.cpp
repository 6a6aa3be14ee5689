#include "kernels/cuda/base/device_description.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::cuda {

constexpr std::uintmax_t kMaxBytes = 1 << 20;

DeviceDescription read_device_description(const std::string& path) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path, error);
  require(is_file && std::filesystem::file_size(path, error) <= kMaxBytes, ErrorCode::usage,
          "{}: expected the description of a GPU, found {}", path,
          error     ? error.message()
          : is_file ? "a file of more than a megabyte"
                    : "a directory or a special file");
  std::ifstream file(path, std::ios::binary);
  require(file.good(), ErrorCode::usage, "{}: the description of a GPU cannot be opened: {}", path,
          std::strerror(errno));
  DeviceDescription description;
  description.json.assign(std::istreambuf_iterator<char>(file), {});
  double memory_bytes = 0;
  try {
    const nlohmann::json keys = nlohmann::json::parse(description.json);
    description.name = keys.at("deviceName").get<std::string>();
    description.compute_capability = keys.at("deviceVer").get<int>() / 10;
    description.multiprocessors = keys.at("multiProcessorCount").get<int>();
    memory_bytes = keys.at("totalGlobalMem").get<double>();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::usage, "{}: this is not the description of a GPU that cuDNN writes: {}", path, error.what());
  }
  const auto in_range = [&](const char* key, double value, double least, double greatest) {
    require(value >= least && value <= greatest, ErrorCode::usage, "{}: {} must be from {} to {}, but is {}", path, key,
            least, greatest, value);
  };
  in_range("deviceVer", 10 * description.compute_capability, 500, 5000);
  in_range("multiProcessorCount", description.multiprocessors, 1, 10000);
  in_range("totalGlobalMem", memory_bytes, 1 << 28, 0x1p50);
  require(
      description.name.size() <= 200 && std::ranges::none_of(description.name, [](unsigned char c) { return c < ' '; }),
      ErrorCode::usage, "{}: deviceName is not the name of a GPU", path);
  description.memory_bytes = static_cast<std::size_t>(memory_bytes);
  return description;
}

}  // namespace lockstep::cuda
