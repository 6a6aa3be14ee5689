#include "kernels/cuda/base/device_description.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::cuda {

DeviceDescription read_device_description(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), ErrorCode::usage, "{}: the description of a GPU cannot be opened: {}", path,
          std::strerror(errno));
  DeviceDescription description;
  description.json.assign(std::istreambuf_iterator<char>(file), {});
  try {
    const nlohmann::json keys = nlohmann::json::parse(description.json);
    description.name = keys.at("deviceName").get<std::string>();
    description.compute_capability = keys.at("deviceVer").get<int>() / 10;
    description.multiprocessors = keys.at("multiProcessorCount").get<int>();
    description.memory_bytes = keys.at("totalGlobalMem").get<std::size_t>();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::usage, "{}: this is no description of a GPU as cuDNN writes it: {}", path, error.what());
  }
  return description;
}

}  // namespace lockstep::cuda
