#include "base/utf8.h"

#include <nlohmann/json.hpp>

namespace lockstep {

std::string valid_utf8(const std::string& text) {
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

}  // namespace lockstep
