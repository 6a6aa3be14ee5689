#pragma once

#include <string>

namespace lockstep::data {

std::string hdf5_version();  // "1.10.8", of the library that is loaded

}  // namespace lockstep::data
