// The versions of the program and of every library, for metrics.json and `lockstep --version`.
#include <fmt/core.h>
#include <google/protobuf/stubs/common.h>
#include <spdlog/version.h>
#include <xxhash.h>

#include <CLI/Version.hpp>
#include <nlohmann/json.hpp>

#include "base/curl_library.h"
#include "base/version.h"
#include "comm/mpi_calls.h"
#include "data/archive.h"
#include "data/image_decoder.h"
#include "hdf5/reader.h"
#include "run/metrics.h"
#include "text/normalizer.h"
#include "text/pattern.h"

namespace lockstep::run {
namespace {

/// The text "1.2.3" of a version number whose parts are digits in this base, such as 1002003 with base 1000.
std::string dotted(int number, int base) {
  return fmt::format("{}.{}.{}", number / base / base, number / base % base, number % base);
}

}  // namespace

std::string versions_json() {
  nlohmann::ordered_json libraries;
  libraries["MPI"] = comm::MpiCalls::version();
  libraries["HDF5"] = hdf5::version();
  libraries["libjpeg-turbo"] = data::jpeg_version();
  libraries["libpng"] = data::png_version();
  libraries["PCRE2"] = text::pcre2_version();
  libraries["utf8proc"] = text::utf8proc_version();
  libraries["libcurl"] = libcurl_version();
  libraries["libarchive"] = data::libarchive_version();
  for (const std::string& library : backend_libraries()) {
    const auto blank = library.find(' ');
    libraries[library.substr(0, blank)] = blank == std::string::npos ? "unknown" : library.substr(blank + 1);
  }
  libraries["yaml-cpp"] = yaml_cpp_version();
  libraries["nlohmann-json"] =
      fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH);
  libraries["CLI11"] = CLI11_VERSION;
  libraries["fmt"] = dotted(FMT_VERSION, 100);
  libraries["spdlog"] = fmt::format("{}.{}.{}", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH);
  libraries["protobuf"] = dotted(GOOGLE_PROTOBUF_VERSION, 1000);
  libraries["xxHash"] = dotted(XXH_VERSION_NUMBER, 100);
  const nlohmann::ordered_json object{
      {"version", version()}, {"commit", commit()}, {"compiler", compiler()}, {"libraries", libraries}};
  return object.dump();
}

}  // namespace lockstep::run
